"""The Trainer of transformers, with a callback for LMS:

pip install 'torch-lms[transformers]'
python examples/hf_trainer.py
"""

import tempfile

import torch

import torch_lms
from torch_lms.transformers import LMSCallback  # before transformers, where torchvision is not of PyTorch's build

import transformers  # isort: skip

LIMIT = 8_000_000

lms = LMSCallback(limit=LIMIT, min_size="16KiB")  # before the model is made

transformers.set_seed(0)
config = transformers.GPT2Config(
    vocab_size=300, n_positions=64, n_embd=128, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=0
)
tokens = torch.randint(0, 300, (64, 64))
with tempfile.TemporaryDirectory() as folder:
    trainer = transformers.Trainer(
        transformers.GPT2LMHeadModel(config),
        transformers.TrainingArguments(
            folder,
            per_device_train_batch_size=8,
            max_steps=10,
            logging_steps=5,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
        callbacks=[lms],
    )
    trainer.train()

print(torch_lms.stats())
assert torch_lms.stats().peak_resident_bytes <= LIMIT
