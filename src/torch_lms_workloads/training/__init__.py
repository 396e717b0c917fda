"""One training loop for all workloads. Lower files first:

choices                         options by name: which are the network's, which the data set's
request, recipe                 what was asked for; what decides about the losses
material                        the samples that are trained and validated with
schedules, optimizers           the learning rate at each step; an optimizer by its name
metrics                         mIoU, Dice, top-1
random_state                    all of it, to be put back
weights                         a network's initial weights from a file
numa, ranks                     the processes that train together, and where they run
engines                         how they do so: alone, DistributedDataParallel, FSDP2
checkpoints                     files that are whole or not there, and what is in them
memory                          what is used, and running out of it
logs                            JSON lines, TensorBoard
paging                          LMS, as asked for
stepper, validation             one step; the metric
progress                        what people see
loop                            all of it together
"""
