"""A training loop with one line for LMS: python examples/plain_pytorch.py

The step needs about 37 MB of tensors; they stay within 12 MB here, since the line says so. In a program of your own
leave ``limit`` out, so that nothing moves before memory runs short.
"""

import torch
from torch import nn

import torch_lms

LIMIT = 12_000_000

torch_lms.enable(limit=LIMIT, min_size="16KiB")

torch.manual_seed(0)
model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(256, 256), nn.GELU(), nn.Dropout(0.1))))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(12):
    batch = torch.randn(1024, 256)
    loss = (model(batch) - batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

print(f"loss {loss.item():.6f}")
print(torch_lms.stats())
assert torch_lms.stats().peak_resident_bytes <= LIMIT
