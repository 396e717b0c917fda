"""Options that several commands take."""

import click

from torch_lms.named_values import named_values

tune_option = click.option(
    "--tune",
    multiple=True,
    callback=named_values,
    metavar="NAME=VALUE",
    help="A tunable of the policy tflms2, as swapout_threshold=1. Repeatable; those not given are chosen.",
)

inexact_option = click.option(
    "--inexact",
    "exact",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Let operations larger than the limit run in pieces even where these may be rounded in another way.",
)
