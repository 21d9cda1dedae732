"""From how many elements on each compiled kernel of the reference vendor beats numpy's: what ``compiled/sizes.py`` writes down.

Kernels are called on arrays, without routing, interleaved in one process on one thread. Run with
``python benchmarks/sizes.py [NAME ...]``.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import torch

from flroute import reference_vendor
from flroute.benchmark.timing import Work, calls_that_take, seconds_per_call
from flroute.reference_vendor import compiled
from flroute.vendor import Kernel

SIZES = [2**power for power in range(5, 21)]
WIDTH = 64
"""Elements of a row."""


def _two(x: Any) -> tuple[Any, ...]:
    return x, x


def _rows(x: Any) -> Any:
    return x.reshape(-1, min(WIDTH, x.size))


def _images(x: Any) -> Any:
    return x.reshape(2, -1, 16)


def _per_channel(x: Any) -> Any:
    return x[: x.size // 32].copy()


ARGUMENTS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "gelu_backward": _two,
    "sigmoid_backward": _two,
    "tanh_backward": _two,
    "silu_backward": _two,
    "threshold_backward": lambda x: (x, x, 0.0),
    "add": _two,
    "sub": _two,
    "mul": _two,
    "div": _two,
    "softmax": lambda x: (_rows(x), -1, False),
    "log_softmax": lambda x: (_rows(x), -1, False),
    "softmax_backward": lambda x: (_rows(x), _rows(x), -1, torch.float32),
    "log_softmax_backward": lambda x: (_rows(x), _rows(x), -1, torch.float32),
    "sum_dim": lambda x: (_rows(x), [-1]),
    "mean_dim": lambda x: (_rows(x), [-1]),
    "batch_norm": lambda x: (_images(x), _per_channel(x), _per_channel(x), None, None, True, 0.1, 1e-5),
    "batch_norm_backward": lambda x: (
        _images(x), _images(x), _per_channel(x), None, None, _per_channel(x), _per_channel(x), True, 1e-5, [True, True, True],
    ),
    "layer_norm": lambda x: (_rows(x), [_rows(x).shape[1]], _rows(x)[0], _rows(x)[0], 1e-5),
    "rms_norm": lambda x: (_rows(x), [_rows(x).shape[1]], _rows(x)[0], 1e-5),
    "rms_norm_backward": lambda x: (_rows(x), _rows(x), [_rows(x).shape[1]], _rows(x)[:, :1].copy(), _rows(x)[0], [True, True]),
    "pow_scalar": lambda x: (x, 3.5),
    "pow_tensor": _two,
    "cumsum": lambda x: (x, 0),
    "embedding": lambda x: (_rows(x), np.arange(len(_rows(x)))),
    "embedding_backward": lambda x: (_rows(x), np.arange(len(_rows(x))), len(_rows(x)), -1, False),
    "nll_loss": lambda x: (_rows(x), np.arange(len(_rows(x))) % _rows(x).shape[1], None, 1, -100),
    "nll_loss_backward": lambda x: (
        x[:1].reshape(()), _rows(x), np.arange(len(_rows(x))) % _rows(x).shape[1], None, 1, -100, x[:1].reshape(()),
    ),
    "lerp_": lambda x: ([x], [x], 0.1),
    "addcmul_": lambda x: ([x], [x], [x], 0.1),
    "addcdiv_": lambda x: ([x], [x], [x], 0.1),
    "addcdiv_list_": lambda x: ([x], [x], [x], [0.1]),
    "layer_norm_backward": lambda x: (
        _rows(x), _rows(x), [_rows(x).shape[1]], _rows(x)[:, :1].copy(), _rows(x)[:, :1].copy(), _rows(x)[0], _rows(x)[0],
        [True, True, True],
    ),
}  # fmt: skip
"""Arguments of a kernel, by its function's name, made of an array; of those not listed, the array itself."""


def numpys(kernel: Kernel) -> Kernel:
    """The kernel in numpy for the same op and dtype."""
    found = [
        other
        for other in reference_vendor.kernels()
        if other.op == kernel.op and other.implementation != kernel.implementation
    ]
    half = torch.float32 not in kernel.dtypes
    wanted = torch.float16 if half else torch.float32
    return next(other for other in found if not other.dtypes or wanted in other.dtypes)


def ratios(kernel: Kernel) -> dict[int, float]:
    """By size, how many times faster the compiled kernel is."""
    other, dtype = numpys(kernel), np.float32 if torch.float32 in kernel.dtypes else np.float16
    found = {}
    for size in SIZES:
        x = (np.random.default_rng(0).random(size) + 0.5).astype(dtype)
        arguments = ARGUMENTS.get(kernel.function.__name__, lambda x: (x,))(x)
        found[size] = times_faster(partial(kernel.function, *arguments), partial(other.function, *arguments))
    return found


def times_faster(work: Work, other: Work, rounds: int = 7) -> float:
    """The median of the ratios of two pieces of work done in turn."""
    calls = calls_that_take(0.002, work), calls_that_take(0.002, other)
    return statistics.median(
        seconds_per_call(other, calls[1]) / seconds_per_call(work, calls[0]) for _ in range(rounds)
    )


def crossover(found: dict[int, float]) -> int | None:
    """The least size from which on the compiled kernel is never slower; None: there is none."""
    slower = [size for size, ratio in found.items() if ratio < 1]
    faster = [size for size in found if not slower or size > max(slower)]
    return min(faster, default=None)


def main(names: list[str]) -> None:
    """Print a line for each kernel, or for those that are named."""
    torch.set_num_threads(1)
    for kernel in compiled.kernels():
        if names and kernel.function.__name__ not in names:
            continue
        found = ratios(kernel)
        shown = " ".join(f"{size}:{ratio:.2f}" for size, ratio in found.items())
        print(f"{kernel.function.__name__:24}{kernel.op:36}{crossover(found)!s:>8}   {shown}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
