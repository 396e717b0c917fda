"""A process of ``larger_than_memory.py``: it makes a model, or uses it with LMS or without.

    python benchmarks/larger_than_memory_worker.py make FOLDER WIDTH INNER LAYERS WORDS
    python benchmarks/larger_than_memory_worker.py use FOLDER TARGET [LIMIT]

Of each phase of its use a line of JSON is printed.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import torch_lms
from torch_lms.demo.train import memory_of_process

SHARDS = 2
STEPS = 6
PROMPT, ANSWER, TEXT = 12, 8, 64
"""Tokens."""


class Phases:
    """Prints what each phase took.

    Args:
        lms: of the session; None without one.
    """

    def __init__(self, lms: Any) -> None:
        self._lms = lms
        self._imports_bytes = memory_of_process("VmRSS")

    @contextmanager
    def phase(self, name: str) -> Iterator[dict[str, Any]]:
        """A phase. What is put in the dictionary is printed, too."""
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        spilled_bytes, began_s = self._spilled_bytes(), time.perf_counter()
        given: dict[str, Any] = {}
        yield given
        figures = {
            "phase": name,
            "seconds": time.perf_counter() - began_s,
            "memory_bytes": memory_of_process("VmHWM"),
            "imports_bytes": self._imports_bytes,
            "spilled_bytes": self._spilled_bytes() - spilled_bytes,
            "given": given,
        }
        print(json.dumps(figures), flush=True)

    def _spilled_bytes(self) -> int:
        return 0 if self._lms is None else int(self._lms.stats().evicted_bytes)


def make(folder: Path, width: int, inner: int, layers: int, words: int) -> None:
    """Save a decoder as Llama's, of random weights, in ``SHARDS`` files."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=words,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    nbytes = sum(parameter.nbytes for parameter in model.parameters())
    model.save_pretrained(folder, max_shard_size=int(nbytes / SHARDS * 1.1))


def use(source: Path, target: Path, limit: int | None) -> None:
    """All phases. ``limit``: of bytes, with LMS; None without."""
    with nullcontext() if limit is None else torch_lms.session(limit=limit) as lms:
        phases = Phases(lms)
        with phases.phase("load"):
            model = LlamaForCausalLM.from_pretrained(source, dtype=torch.float32)
        words = model.config.vocab_size
        with phases.phase("generate") as given:
            prompt = torch.arange(PROMPT)[None] % words
            given["tokens"] = model.generate(prompt, max_new_tokens=ANSWER, do_sample=False).tolist()
        text = torch.arange(TEXT)[None] * 7 % words
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        for step in range(STEPS):
            with phases.phase(f"step {step + 1}") as given:
                given["loss"] = train(model, optimizer, text)
        with phases.phase("save the weights"):
            model.save_pretrained(target)
        with phases.phase("save the optimizer's state"):
            torch.save(optimizer.state_dict(), target / "optimizer.pt")
        del model, optimizer
        with phases.phase("load both"):
            model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
            optimizer.load_state_dict(torch.load(target / "optimizer.pt", mmap=True))
        with phases.phase(f"step {STEPS + 1}") as given:
            given["loss"] = train(model, optimizer, text)
        with phases.phase("save the weights"):
            model.save_pretrained(target / "resumed")
        os._exit(0)  # nothing has to come back


def train(model: Any, optimizer: torch.optim.Optimizer, text: torch.Tensor) -> float:
    """The loss of a step."""
    loss = model(input_ids=text, labels=text).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]), *map(int, sys.argv[3:]))
    else:
        use(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else None)
