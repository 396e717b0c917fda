"""A compiled model that does not fit: python examples/compiled.py

As a whole it would be one operation, and all that it needs on the device at once. The backend "lms" cuts it into
pieces, which Inductor compiles. LMS is on before the model is called for the first time, since its limit says how small
they are.
"""

import torch
from torch import nn

import torch_lms

LIMIT = 5_000_000

torch_lms.enable(limit=LIMIT, min_size="16KiB")

torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(3)))
compiled = torch.compile(model, backend="lms")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
for _ in range(8):
    batch = torch.randn(1024, 256)
    loss = (compiled(batch) - batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

print(f"loss {loss.item():.6f}")
print(torch_lms.stats())
assert torch_lms.stats().peak_resident_bytes <= 1.1 * LIMIT
