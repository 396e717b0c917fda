"""The option ``--tune``, which several commands take."""

import click

from torch_lms.named_values import named_values

tune_option = click.option(
    "--tune",
    multiple=True,
    callback=named_values,
    metavar="NAME=VALUE",
    help="A tunable of the policy tflms2, as swapout_threshold=1. Repeatable; those not given are chosen.",
)
