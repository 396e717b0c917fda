"""Networks as large as torch-lms is made for, ready to be planned, trained and measured.

Found by ``torch_lms`` through the entry points ``torch_lms.workloads`` and ``torch_lms.commands``, never imported by
it. Lower files first:

    edges, samples              where maps change; what goes into a network
    losses, dual_task           what is trained
    data                        what it is trained on: folders of pictures and volumes
    nets                        networks, one a file
    workload                    a network, its data, its loss, its metric and its optimizer, in one value
    catalogue                   the workloads, one a file
    training                    one training loop for all of them
    prediction                  what a trained network says of whole images
    commands                    torch-lms train, predict, eval

Importing the package loads none of the libraries that the networks come from.
"""

from torch_lms.targets import define_torchvision_operators

define_torchvision_operators()
