"""Small trainings that together use what real ones do. A workload is a function of a device: it makes a model, runs
some steps, and returns every tensor that must be equal to the bit."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

Workload = Callable[[torch.device], list[torch.Tensor]]
STEPS = 4
_SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)


def _seeded(make: Callable[[], nn.Module], device: torch.device) -> nn.Module:
    torch.manual_seed(1)
    model = make().to(device)
    torch.manual_seed(2)
    return model


def _state(model: nn.Module, optimizer: torch.optim.Optimizer | None, losses: list[torch.Tensor]) -> list[torch.Tensor]:
    held = [*losses, *model.parameters(), *model.buffers()]
    if optimizer is not None:
        held += [v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
    return [tensor.detach() for tensor in held]


def _train(
    device: torch.device,
    make: Callable[[], nn.Module],
    batch: Callable[[torch.device], torch.Tensor],
    optimizer: Callable[..., torch.optim.Optimizer] = _SGD,
    accumulate: int = 1,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> list[torch.Tensor]:
    model = _seeded(make, device).to(memory_format=memory_format)
    updates = optimizer(model.parameters())
    losses = []
    for _ in range(STEPS):
        updates.zero_grad()
        for _ in range(accumulate):
            x = batch(device)
            if x.dim() == 4:
                x = x.contiguous(memory_format=memory_format)
            loss = model(x).square().mean()
            loss.backward()
        updates.step()
        losses.append(loss)
    return _state(model, updates, losses)


def _images(device: torch.device) -> torch.Tensor:
    return torch.randn(4, 3, 32, 32, device=device)


def _sequences(device: torch.device) -> torch.Tensor:
    return torch.randn(4, 24, 64, device=device)


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.Dropout(0.2),
        nn.Conv2d(16, 32, 3, padding=1, groups=4),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 16 * 16, 32),
    )


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([self._block(3, 8), self._block(8, 16), self._block(16, 32)])
        self.up = nn.ModuleList([self._block(32 + 16, 16), self._block(16 + 8, 8)])
        self.head = nn.Conv2d(8, 2, 1)

    @staticmethod
    def _block(c_in: int, c_out: int) -> nn.Module:
        convolution = nn.Conv2d(c_in, c_out, 3, padding=1)
        return nn.Sequential(convolution, nn.InstanceNorm2d(c_out, affine=True), nn.LeakyReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for block in self.down[:-1]:
            x = block(x)
            skips.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.down[-1](x)
        for block, skip in zip(self.up, reversed(skips), strict=True):
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0, mode="nearest"), skip], 1))
        return self.head(x)


class Lstm(nn.Module):
    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.cells = nn.LSTM(64, 48, num_layers=2, batch_first=True, dropout=dropout, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cells(x)[0]


def encoder(layers: int = 2) -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, dim_feedforward=128, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, layers)


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 64)) for _ in range(3)]
        )
        self.first = nn.Linear(64, 64)
        self.use_reentrant = use_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=self.use_reentrant)
        return x


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # type: ignore[no-untyped-def]
        square = x * x
        ctx.save_for_backward(x, square, weight)
        return square * x * weight

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[no-untyped-def, override]
        x, square, weight = ctx.saved_tensors
        return 3 * square * grad * weight, (grad * square * x).sum_to_size(weight.shape)


class OwnFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.weight = nn.Parameter(torch.randn(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Cube.apply(self.linear(x), self.weight)


def double_backward(device: torch.device) -> list[torch.Tensor]:
    model = _seeded(lambda: nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 1)), device)
    updates = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(STEPS):
        updates.zero_grad()
        x = torch.randn(64, 64, device=device, requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        loss = (slope.norm(dim=1) - 1).square().mean()
        loss.backward()
        updates.step()
        losses.append(loss)
    return _state(model, updates, losses)


def autocast(device: torch.device, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    model = _seeded(cnn, device)
    updates = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16, init_scale=256.0)
    losses = []
    for _ in range(STEPS):
        updates.zero_grad()
        with torch.autocast(device.type, dtype=dtype):
            loss = model(_images(device)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(updates)
        scaler.update()
        losses.append(loss)
    return _state(model, updates, losses)


def inference(device: torch.device, guard: Callable[[], object] = torch.no_grad) -> list[torch.Tensor]:
    models = [_seeded(make, device).eval() for make in (cnn, UNet, encoder)]
    with guard():  # type: ignore[attr-defined]
        images, sequences = _images(device), _sequences(device)
        return [
            model(sequences if isinstance(model, nn.TransformerEncoder) else images).clone()
            for model in models
            for _ in range(STEPS)
        ]


WORKLOADS: dict[str, Workload] = {
    "cnn": partial(_train, make=cnn, batch=_images),
    "cnn-channels-last": partial(_train, make=cnn, batch=_images, memory_format=torch.channels_last),
    "cnn-accumulate": partial(_train, make=cnn, batch=_images, accumulate=3),
    "unet": partial(_train, make=UNet, batch=_images),
    "lstm": partial(_train, make=Lstm, batch=_sequences),
    # cuDNN draws for its dropout from a state that no seed resets: two runs in one process differ
    "lstm-no-dropout": partial(_train, make=partial(Lstm, 0.0), batch=_sequences),
    "encoder": partial(_train, make=encoder, batch=_sequences),
    "own-function": partial(_train, make=OwnFunction, batch=_sequences),
    "checkpoint": partial(_train, make=partial(Checkpointed, False), batch=_sequences),
    "checkpoint-reentrant": partial(_train, make=partial(Checkpointed, True), batch=_sequences),
    "double-backward": double_backward,
    "autocast-bf16": autocast,
    "autocast-fp16": partial(autocast, dtype=torch.float16),
    "inference-no-grad": inference,
    "inference-mode": partial(inference, guard=torch.inference_mode),
    **{
        f"{kind.__name__.lower()}-{how}": partial(
            _train,
            make=partial(encoder, 1),
            batch=_sequences,
            optimizer=partial(kind, lr=0.01, **({how: True} if how != "loop" else {"foreach": False})),
        )
        for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
        for how in ("loop", "foreach", "fused")
    },
}
