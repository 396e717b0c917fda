"""A decoder of the width of GPT-3 Medium, half as deep. Settings of arXiv 2005.14165, table 2.1 and appendix B."""

from torch.optim import AdamW

from torch_lms_workloads.losses import next_token
from torch_lms_workloads.nets.gpt import Gpt
from torch_lms_workloads.samples import tokens
from torch_lms_workloads.workload import OptimizerChoice, Workload

gpt = Workload(
    name="gpt",
    title="A decoder of the kind of GPT, language modelling",
    build=Gpt,
    sample=tokens,
    loss=next_token,
    dimensions=1,
    size=2048,
    batch=4,
    optimizer=OptimizerChoice(AdamW, {"lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}),
    options={"layers": 12, "hidden": 1024, "heads": 16, "vocabulary": 50257},
)
