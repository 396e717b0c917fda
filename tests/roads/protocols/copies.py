"""Copies, files, and other processes."""

import copy
import multiprocessing.reduction
import pickle
import tempfile
from functools import partial
from typing import Any

import torch
from torch.multiprocessing import reductions

from tests.roads.protocols.common import Held, saved

try:
    import safetensors.torch as safetensors
except ImportError:
    safetensors = None


def _saved_under_two_dtypes(x: torch.Tensor, **options: Any) -> Any:
    return saved({"one": x, "other": x.detach().view(torch.uint8)}, **options)


def _reduced(x: torch.Tensor) -> Any:
    rebuild, args = reductions.reduce_tensor(x.detach())
    return rebuild(*args)


def _sent(x: torch.Tensor) -> bool:
    return len(multiprocessing.reduction.ForkingPickler.dumps(x.detach())) > 0


def _swapped(x: torch.Tensor) -> Any:
    other = torch.full_like(x, 1)
    torch.utils.swap_tensors(x, other)
    return other


def _safe(x: torch.Tensor) -> Any:
    return safetensors.load(safetensors.save({"x": x.detach().contiguous()}))


def _safe_file(x: torch.Tensor) -> Any:
    with tempfile.NamedTemporaryFile() as file:
        safetensors.save_file({"x": x.detach().contiguous()}, file.name)
        return safetensors.load_file(file.name)


def _shared(x: torch.Tensor) -> Any:
    return x.detach().share_memory_()


def _module_shared(x: torch.Tensor) -> Any:
    return Held(x).share_memory().held


def _loaded_mapped(x: torch.Tensor) -> Any:
    with tempfile.NamedTemporaryFile() as file:
        torch.save(x, file.name)
        return torch.load(file.name, mmap=True, weights_only=False) + 0


_PICKLED = {
    f"pickle {protocol}": lambda x, protocol=protocol: pickle.loads(pickle.dumps(x, protocol))
    for protocol in range(2, 6)
}
_COPIES = {
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "copy.deepcopy detach": lambda x: copy.deepcopy(x.detach()),
    "copy.deepcopy twice": lambda x: copy.deepcopy([x, x[0].detach()]),
    "copy.deepcopy of a module": lambda x: copy.deepcopy(Held(x)).held,
    "copy.deepcopy of a storage": lambda x: copy.deepcopy(x.untyped_storage()),
    "copy.copy of a storage": lambda x: copy.copy(x.untyped_storage()),
    "pickle of a storage": lambda x: pickle.loads(pickle.dumps(x.untyped_storage())),
    "pickle of a typed storage": lambda x: pickle.loads(pickle.dumps(x.storage())),
    "pickle of a view and its base": lambda x: pickle.loads(pickle.dumps([x, x.detach()[0]])),
    "pickle of a module": lambda x: pickle.loads(pickle.dumps(Held(x).state_dict())),
    "state_dict, loaded": lambda x: Held(torch.zeros_like(x)).load_state_dict(Held(x).state_dict()),
    "torch.save": saved,
    "torch.save legacy": partial(saved, _use_new_zipfile_serialization=False),
    "torch.save of a view": lambda x: saved([x.detach()[1:, 1], x]),
    "torch.save of a storage": lambda x: saved(x.untyped_storage()),
    "torch.save of a typed storage": lambda x: saved(x.storage()),
    "torch.save under two dtypes": _saved_under_two_dtypes,
    "torch.save under two dtypes, legacy": partial(_saved_under_two_dtypes, _use_new_zipfile_serialization=False),
    "torch.load mapped": lambda x: _loaded_mapped(x),
    "share_memory_": _shared,
    "Module.share_memory": _module_shared,
    "reduce_tensor": _reduced,
    "ForkingPickler": _sent,
    "swap_tensors": _swapped,
    **({"safetensors": _safe, "safetensors file": _safe_file} if safetensors is not None else {}),
}
COPIES = {**_PICKLED, **_COPIES}
