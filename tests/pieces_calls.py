"""Calls of every operator that can be cut, with sizes that nothing divides."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten
LAST = torch.channels_last


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(dtype)


def pool_backward(x: Tensor, space: int) -> tuple[Any, ...]:
    """Arguments of the gradient of a maximum."""
    result, indices = getattr(F, f"max_pool{space}d")(x, 3, 2, 1, return_indices=True)
    return torch.randn_like(result), x, *([value] * space for value in (3, 2, 1, 1)), False, indices


def norm(
    training: bool, dtype: torch.dtype = torch.float32, last: bool = False, of: torch.dtype = torch.float32
) -> tuple[Any, ...]:
    x = rand(2, 13, 17, 11, dtype=dtype)
    vectors = [(torch.rand(13) + 0.5).to(of) for _ in range(4)]
    return (x.to(memory_format=LAST) if last else x), *vectors, training, 0.1, 1e-5


def conv(
    space: int,
    into: int,
    out: int,
    size: int,
    *,
    stride: int = 1,
    padding: int = 1,
    transposed: bool = False,
    groups: int = 1,
    batch: int = 1,
    dtype: torch.dtype = torch.float32,
    last: bool = False,
    one_for_all: bool = False,
) -> tuple[Any, ...]:
    """Arguments of a convolution. ``one_for_all``: one number tells of all dimensions, as for a padding of "valid"."""
    x = rand(batch, into, *[size] * space, dtype=dtype)
    weight = rand(*((into, out // groups) if transposed else (out, into // groups)), *[3] * space, dtype=dtype)
    if last:
        x = x.to(memory_format=LAST)
    its = [[value] * (1 if one_for_all else space) for value in (stride, padding, 1)]
    return x, weight, rand(out, dtype=dtype), *its, transposed, [0] * space, groups


def gradients(*mask: bool, **how: Any) -> tuple[Any, ...]:
    """Arguments of the gradients of a convolution."""
    x, weight, bias, *rest = conv(**how)
    result = aten.convolution(x, weight, bias, *rest)
    return torch.randn_like(result), x, weight, [bias.numel()], *rest, list(mask)


def groups(*ends: int) -> Tensor:
    return torch.tensor(ends, dtype=torch.int32)


def attended(**how: Any) -> tuple[Any, ...]:
    return tuple(rand(2, 6, 61, 16) for _ in range(3))


def attention_backward() -> tuple[Any, ...]:
    q, k, v = attended()
    out, logsumexp = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
    return torch.randn_like(out), q, k, v, out, logsumexp, 0.0, True


def rows(*shape: int, classes: int) -> Tensor:
    return torch.randint(0, classes, shape)


def of_target(scores: Tensor, *, ignored: bool = False) -> tuple[Any, ...]:
    target = rows(scores.shape[0], *scores.shape[2:], classes=scores.shape[1])
    if ignored:
        target.view(-1)[::5] = 3
    return scores, target, None, 1, 3 if ignored else -100


def loss_backward(scores: Tensor) -> tuple[Any, ...]:
    given = of_target(scores)
    forward = aten.nll_loss_forward if scores.dim() == 2 else aten.nll_loss2d_forward
    total = forward(*given)[1]
    return torch.tensor(1.5), *given, total


def group_norm_backward(batch: int, channels: int, groups: int, weighted: bool = True) -> tuple[Any, ...]:
    """Arguments of the gradients of a group norm, but for which of them are asked for."""
    x = rand(batch, channels, 13, 11)
    weight = rand(channels) if weighted else None
    _, mean, rstd = aten.native_group_norm(x, weight, None, batch, channels, 143, groups, 1e-5)
    return rand(batch, channels, 13, 11), x, mean, rstd, weight, batch, channels, 143, groups


BF16 = torch.bfloat16
Made = Callable[[], tuple[Any, ...]]
SUMS_SO_FAR = ("cumsum", "cumprod", "logcumsumexp")

CALLS: dict[str, list[Made]] = {
    "_softmax": [
        lambda: (rand(97, 53), 1, False),
        lambda: (rand(3, 31, 29), 1, False),
        lambda: (rand(97, 53, dtype=BF16), -1, False),
        lambda: (rand(53, 97).t(), 1, False),
    ],
    "_safe_softmax": [
        lambda: (rand(97, 53), 1),
        lambda: (rand(2, 7, 19, 13).masked_fill(torch.arange(13) % 3 == 0, -torch.inf), -1),
        lambda: (rand(97, 53).masked_fill(torch.arange(97)[:, None] % 5 == 0, -torch.inf), 1),
    ],
    "_log_softmax": [lambda: (rand(97, 53), 1, False), lambda: (rand(2, 7, 19, 13), 1, False)],
    "_softmax_backward_data": [lambda: (rand(97, 53), rand(97, 53), 1, torch.float32)],
    "_log_softmax_backward_data": [
        lambda: (rand(97, 53), rand(97, 53), 1, torch.float32),
        lambda: (rand(2, 7, 19, 13), rand(2, 7, 19, 13), 1, torch.float32),
    ],
    "native_layer_norm": [
        lambda: (rand(3, 37, 41), [41], rand(41), rand(41), 1e-5),
        lambda: (rand(397, 41, dtype=BF16), [41], None, None, 1e-5),
        lambda: (rand(397, 41, dtype=BF16), [41], rand(41), rand(41), 1e-5),
        lambda: (rand(397, 41, dtype=BF16), [41], rand(41, dtype=BF16), None, 1e-5),
    ],
    "native_layer_norm_backward": [
        lambda: (rand(97, 41), rand(97, 41), [41], rand(97, 1), rand(97, 1), rand(41), rand(41), [True, False, False])
    ],
    "native_group_norm": [
        lambda: (rand(1, 24, 13, 11), rand(24), rand(24), 1, 24, 143, 6, 1e-5),
        lambda: (rand(5, 4, 13, 11), rand(4), rand(4), 5, 4, 143, 2, 1e-5),
    ],
    "embedding": [lambda: (rand(19, 33), rows(67, 3, classes=19))],
    "nll_loss_backward": [lambda: loss_backward(rand(97, 53))],
    "nll_loss2d_backward": [lambda: loss_backward(rand(1, 5, 31, 29))],
    "sum": [lambda: (rand(97, 53), [0]), lambda: (rand(97, 53), [1], True), lambda: (rand(5, 7, 31, 13), [0, 2])],
    "mean": [lambda: (rand(97, 53), [1])],
    "amax": [lambda: (rand(97, 53), [1])],
    "amin": [lambda: (rand(97, 53), [0])],
    "native_batch_norm": [
        lambda: norm(True),
        lambda: norm(False),
        lambda: norm(True, last=True),
        lambda: norm(True, BF16),
        lambda: norm(True, BF16, of=BF16),
        lambda: (rand(1, 2, 97, 31), *[torch.rand(2) for _ in range(4)], False, 0.1, 1e-5),
    ],
    "_native_batch_norm_legit": [lambda: norm(True)],
    "_native_batch_norm_legit_no_training": [lambda: (*norm(False)[:5], 0.1, 1e-5)],
    "native_batch_norm_backward": [
        lambda: (
            *(rand(2, 13, 17, 11), rand(2, 13, 17, 11)),
            *(torch.rand(13) + 0.5 for _ in range(5)),
            *(True, 1e-5, [True, True, True]),
        )
    ],
    **{
        f"max_pool{space}d_with_indices{backward}": [
            (lambda x=shape, s=space: (rand(*x), [3] * s, [2] * s, [1] * s))
            if not backward
            else (lambda x=shape, s=space: pool_backward(rand(*x), s))
        ]
        for space, shape in ((2, (1, 7, 31, 29)), (3, (1, 5, 11, 13, 9)))
        for backward in ("", "_backward")
    },
    **{f"avg_pool{s}d": [lambda s=s: (rand(2, 5, *[13] * s), [2] * s)] for s in (2, 3)},
    **{
        f"avg_pool{s}d_backward": [
            lambda s=s: (rand(2, 5, *[6] * s), rand(2, 5, *[13] * s), [2] * s, [2] * s, [0] * s, False, True, None)
        ]
        for s in (2, 3)
    },
    **{f"_adaptive_avg_pool{s}d": [lambda s=s: (rand(2, 15, *[13] * s), [4] * s)] for s in (2, 3)},
    **{
        f"_adaptive_avg_pool{s}d_backward": [lambda s=s: (rand(2, 15, *[4] * s), rand(2, 15, *[13] * s))]
        for s in (2, 3)
    },
    **{
        f"upsample_{kind}{backward}": [
            lambda kind=kind, s=s, backward=backward: (
                *(
                    (rand(1, 29, *[10] * s), [10] * s, [1, 29, *[5] * s])
                    if backward
                    else (rand(1, 29, *[5] * s), [10] * s)
                ),
                *(() if "nearest" in kind else (False,)),
            )
        ]
        for kind, s in (("nearest2d", 2), ("nearest3d", 3), ("bilinear2d", 2), ("bicubic2d", 2), ("trilinear3d", 3))
        for backward in ("", "_backward")
    },
    "mm": [
        lambda: (rand(97, 31), rand(31, 53)),
        lambda: (rand(31, 97).t(), rand(53, 31).t()),
        lambda: (rand(97, 31, dtype=BF16), rand(31, 53, dtype=BF16)),
        lambda: (rand(1, 31), rand(31, 353)),
    ],
    "addmm": [lambda: (rand(53), rand(97, 31), rand(31, 53)), lambda: (rand(97, 53), rand(97, 31), rand(31, 53))],
    "_grouped_mm": [
        lambda: (rand(96, 32), rand(4, 64, 32).transpose(1, 2), groups(10, 10, 41, 96)),
        lambda: (rand(96, 32).t(), rand(96, 64), groups(10, 10, 41, 96)),
    ],
    "bmm": [lambda: (rand(7, 31, 13), rand(7, 13, 29))],
    "baddbmm": [lambda: (rand(7, 31, 29), rand(7, 31, 13), rand(7, 13, 29))],
    "_scaled_dot_product_flash_attention_for_cpu": [lambda: (*attended(), 0.0, True)],
    "_scaled_dot_product_flash_attention_for_cpu_backward": [attention_backward],
    "convolution": [
        lambda: conv(2, 3, 8, 37),
        lambda: conv(2, 8, 8, 37, stride=2),
        lambda: conv(2, 8, 8, 31, last=True),
        lambda: conv(1, 5, 7, 211),
        lambda: conv(3, 4, 4, 13, padding=0),
        lambda: conv(2, 8, 6, 19, transposed=True),
        lambda: conv(2, 12, 12, 23, groups=12),
        lambda: conv(2, 12, 24, 23, groups=12),
        lambda: conv(2, 12, 18, 23, groups=6),
        lambda: conv(2, 12, 18, 13, groups=6, transposed=True),
        lambda: conv(2, 3, 4, 17, batch=5),
        lambda: conv(2, 3, 8, 37, dtype=BF16),
        lambda: conv(2, 3, 8, 37, one_for_all=True),
    ],
    "convolution_backward": [
        lambda: gradients(True, False, False, space=2, into=8, out=8, size=37),
        lambda: gradients(True, False, False, space=2, into=8, out=8, size=37, stride=2),
        lambda: gradients(False, True, True, space=2, into=8, out=32, size=17),
        lambda: gradients(True, True, True, space=2, into=16, out=16, size=29),
        lambda: gradients(True, False, False, space=2, into=8, out=6, size=19, transposed=True),
        lambda: gradients(True, True, True, space=3, into=4, out=8, size=11, batch=3),
        lambda: gradients(False, True, True, space=2, into=24, out=24, size=23, groups=24),
        lambda: gradients(True, True, True, space=2, into=12, out=24, size=23, groups=6),
        lambda: gradients(True, True, True, space=2, into=12, out=24, size=13, groups=6, transposed=True),
    ],
    "native_group_norm_backward": [
        lambda: (*group_norm_backward(5, 4, 2), [True, False, False]),
        lambda: (*group_norm_backward(1, 24, 6), [True, True, True]),
        lambda: (*group_norm_backward(3, 12, 4, weighted=False), [True, False, False]),
    ],
    "embedding_dense_backward": [lambda: (rand(67, 3, 33), rows(67, 3, classes=19), 19, -1, False)],
    "flip": [lambda: (rand(97, 53), [0]), lambda: (rand(3, 31, 29).transpose(0, 2), [1, -1])],
    "roll": [lambda: (rand(97, 53), [5], [1]), lambda: (rand(3, 31, 29), [2, -7], [0, 2])],
    "gather": [
        lambda: (rand(97, 53), 1, rows(97, 31, classes=53)),
        lambda: (rand(97, 53), 0, rows(11, 53, classes=97)),
        lambda: (rand(5, 31, 29), 2, rows(5, 17, 29, classes=29)),
    ],
    "index_select": [
        lambda: (rand(97, 53), 0, rows(61, classes=97)),
        lambda: (rand(5, 31, 29), -1, rows(40, classes=29)),
    ],
    "index": [
        lambda: (rand(97, 53), [rows(61, classes=97)]),
        lambda: (rand(13, 31, 29), [rows(6, 5, classes=13), None, rows(5, classes=29)]),
        lambda: (rand(13, 31, 29), [None, rows(5, 7, classes=31)]),
    ],
    "tril": [lambda: (rand(97, 53),), lambda: (rand(53, 97).t(), -20), lambda: (rand(5, 31, 29), 4)],
    "triu": [lambda: (rand(97, 53), 7), lambda: (rand(53, 97), -3)],
    "pixel_shuffle": [lambda: (rand(7, 12, 11, 13), 2)],
    "pixel_unshuffle": [lambda: (rand(7, 3, 22, 26), 2)],
    "glu": [lambda: (rand(97, 54), -1), lambda: (rand(6, 31, 64), 0)],
    "glu_backward": [lambda: (rand(97, 27), rand(97, 54), -1)],
    **{name: [lambda: (rand(97, 53), 1), lambda: (rand(7, 31, 128), 1)] for name in SUMS_SO_FAR},
    "sort": [lambda: (rand(97, 53), 1, True), lambda: (rand(5, 31, 29), 2)],
    "topk": [lambda: (rand(97, 53), 5), lambda: (rand(64, 128), 3, 0)],
    **{name: [lambda: (rand(97, 53), 1), lambda: (rand(97, 53), 1, True)] for name in ("argmax", "argmin")},
    **{name: [lambda: (rand(97, 53), 1), lambda: (rand(64, 128), 0)] for name in ("max", "min", "prod")},
    "var": [lambda: (rand(97, 53), [1]), lambda: (rand(5, 7, 31, 13), [1, 3])],
    "std": [lambda: (rand(97, 53), [1], True, True)],
    "var_mean": [lambda: (rand(97, 53), [1])],
    "_fft_r2c": [lambda: (rand(97, 53), [1], 0, True), lambda: (rand(31, 7, 12, 10), [2, 3], 2, False)],
    "_fft_c2c": [
        lambda: (rand(97, 53, dtype=torch.cfloat), [1], 0, True),
        lambda: (rand(64, 128, dtype=torch.cfloat), [0], 1, False),
    ],
    "_fft_c2r": [lambda: (rand(97, 27, dtype=torch.cfloat), [1], 2, 53)],
    "linalg_vector_norm": [lambda: (rand(97, 53), 2, [1]), lambda: (rand(97, 53), 1, [1], True)],
    **{
        f"{kind}_pad{space}d{backward}": [
            lambda space=space, size=size, backward=backward: (
                *([rand(2, 7, *[size + 3] * space)] if backward else []),
                *(rand(2, 7, *[size] * space), [1, 2] * space),
            )
        ]
        for space, size in ((1, 131), (2, 11), (3, 5))
        for kind in ("reflection", "replication")
        for backward in ("", "_backward")
    },
    **{
        f"grid_sampler_{space}d{backward}": [
            lambda space=space, backward=backward: (
                *([rand(5, 3, *[6] * space)] if backward else []),
                *(rand(5, 3, *[9] * space), torch.rand(5, *[6] * space, space) * 2 - 1, 0, 0, False),
                *([[True, True]] if backward else []),
            )
        ]
        for space in (2, 3)
        for backward in ("", "_backward")
    },
    "nll_loss_forward": [lambda: of_target(rand(97, 53)), lambda: of_target(rand(97, 53), ignored=True)],
    "nll_loss2d_forward": [lambda: of_target(rand(1, 5, 31, 29))],
    "stack": [lambda: ([rand(31, 53), rand(31, 53)], -1), lambda: ([rand(31, 53).t(), rand(53, 31)],)],
    "cat": [lambda: ([rand(1, 3, 31, 13), rand(1, 4, 31, 13)], 1), lambda: ([rand(31, 53), rand(0), rand(7, 53)],)],
    "zeros_like": [lambda: (rand(97, 53),), lambda: (rand(2, 7, 31, 29).to(memory_format=LAST),)],
    "constant_pad_nd": [
        lambda: (rand(1, 6, 31, 29), [1, 2, 3, 0], 0.5),
        lambda: (rand(2, 6, 31, 29).to(memory_format=LAST), [1, 1, 1, 1]),
        lambda: (rand(97, 53), [0, 0, 5, 7]),
        lambda: (rand(1, 6, 31, 29), [-1, 2, 3, -2], 0.5),
        lambda: (rand(2, 6, 31, 29).to(memory_format=LAST), [-1, -1, -2, 0]),
        lambda: (rand(8, 2, 31, 53), [0, -13]),
    ],
    "slice_backward": [
        lambda: (rand(2, 31, 53), [2, 97, 53], 1, 13, 44, 1),
        lambda: (rand(2, 31, 53), [2, 97, 53], 1, -31, 9223372036854775807, 1),
    ],
    "select_backward": [lambda: (rand(97, 53), [97, 3, 53], 1, -2)],
    "ones_like": [lambda: (rand(97, 53),)],
    "new_zeros": [lambda: (rand(97, 53), [61, 59])],
    "new_ones": [lambda: (rand(97, 53), [61, 59])],
    "full_like": [lambda: (rand(97, 53), -0.0), lambda: (rand(2, 7, 31, 29).to(memory_format=LAST), 2)],
    "new_full": [lambda: (rand(97, 53), [61, 59], torch.pi)],
    "relu": [lambda: (rand(97, 53),), lambda: (rand(1, 7, 31, 29).to(memory_format=LAST),)],
    "gelu": [lambda: (rand(97, 53),), lambda: (rand(60, 26, 10).transpose(1, 2),)],
    "sigmoid": [lambda: (rand(64, 256),), lambda: (rand(321, 51),)],  # depends on the place: cut in full vectors
    "minimum": [lambda: (rand(321, 51).relu(), -rand(321, 51).relu())],  # which zero it gives depends on that, too
    "add": [lambda: (rand(97, 53), rand(53)), lambda: (rand(97, 1), rand(97, 53)), lambda: (rand(97, 53), 2)],
    "mul_": [lambda: (rand(97, 53), rand(97, 1)), lambda: (rand(97, 53, dtype=BF16), 0.3)],
    "where": [lambda: (rand(97, 53) > 0, rand(97, 53), rand(53))],
    "threshold_backward": [lambda: (rand(97, 53), rand(97, 53), 0)],
    "elu_backward": [lambda: (rand(64, 256), 1.0, 1.0, 1.0, False, rand(64, 256))],
    **{
        f"{name}_backward": [lambda rest=rest: (rand(64, 256), rand(64, 256), *rest)]
        for name, rest in {"leaky_relu": (0.01, False), "hardtanh": (-1, 1), "softplus": (1, 20)}.items()
    },
    **{f"{name}_backward": [lambda: (rand(64, 256), rand(64, 256))] for name in ("hardsigmoid", "hardswish", "mish")},
    "_prelu_kernel_backward": [lambda: (rand(97, 53), rand(97, 53), rand(53))],
    **{
        f"{name}_loss{backward}": [lambda rest=rest, count=count: (*(rand(64, 256) for _ in range(count)), 0, *rest)]
        for name, rest in {"mse": (), "smooth_l1": (0.7,), "huber": (0.7,)}.items()
        for backward, count in {"": 2, "_backward": 3}.items()
    },
    "clone": [lambda: (rand(97, 53),), lambda: (rand(97, 53).t(),)],
    "_to_copy": [lambda: (rand(97, 53),)],
    "copy_": [lambda: (rand(97, 53), rand(97, 53, dtype=BF16))],
    "fill_": [lambda: (rand(97, 53), 3)],
    "zero_": [lambda: (rand(97, 53),)],
}
"""By name: of every operator of the tables, and of some of those of single elements."""
