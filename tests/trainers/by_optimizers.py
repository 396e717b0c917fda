"""Optimizers that are not of ``torch.optim``."""

import importlib
from typing import Any

import torch
from torch import nn

from tests.trainers.run import Run


def trained(run: Run, optimizer: str) -> dict[str, Any]:
    """A small network, saved in mid-training and taken up again. ``optimizer``: as in "module:class"."""
    module, _, name = optimizer.partition(":")
    new = getattr(importlib.import_module(module), name)
    checkpoint = run.folder / "checkpoint.pt"
    losses = []
    for part in range(2):
        torch.manual_seed(part)
        model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(512, 512), nn.ReLU())))
        rule = new(model.parameters(), lr=1e-3)
        if part:
            saved = torch.load(checkpoint, weights_only=False)  # torchao's states are classes of its own
            model.load_state_dict(saved["model"])
            rule.load_state_dict(saved["optimizer"])
        if hasattr(rule, "train"):
            rule.train()  # schedulefree: else weights are those to evaluate with
        for _ in range(8):
            images = torch.randn(256, 512)
            loss = (model(images) - images).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            rule.step()
            rule.zero_grad()
            losses.append(loss.item())
        torch.save({"model": model.state_dict(), "optimizer": rule.state_dict()}, checkpoint)
    return {"losses": losses, "weights": model.state_dict()}
