"""One training loop for all workloads. Lower files first:

choices                     options by name: which are the network's, which the data set's
paging                      LMS, as asked for
request, recipe             what was asked for; what decides about the losses
material                    the samples that are trained and validated with
schedules, optimizers       the learning rate at each step; an optimizer by its name
metrics                     mIoU, Dice, top-1
random_state                all of it, to be put back
checkpoints, weights        files that are whole or not there; a network's initial weights
numa, ranks                 where a process runs; the processes that train together
engines                     how they do so: alone, DistributedDataParallel, FSDP2
placing                     how images go to a network
memory, logs                what is used, and running out of it; JSON lines, TensorBoard
setup                       a training before it begins
stepper, validation         one step; the metric
progress                    what people see
loop                        all of it together
"""
