"""Random numbers, drawn from the host's generator: one seed gives one stream on the host and on the device.

The kernels fill the arrays they receive through PyTorch's own samplers, so that every draw is the host's, number for number.
"""

from __future__ import annotations

import torch

from flroute.reference_vendor.support import FLOATS, NUMBERS, REALS, Array
from flroute.vendor import kernel


@kernel("aten::normal_", dtypes=FLOATS)
def normal_from_host_generator(
    x: Array, mean: float = 0.0, std: float = 1.0, *, generator: torch.Generator | None = None
) -> None:
    torch.from_numpy(x).normal_(mean, std, generator=generator)


@kernel("aten::uniform_", dtypes=FLOATS)
def uniform_from_host_generator(
    x: Array, from_: float = 0.0, to: float = 1.0, *, generator: torch.Generator | None = None
) -> None:
    torch.from_numpy(x).uniform_(from_, to, generator=generator)


@kernel("aten::exponential_", dtypes=FLOATS)
def exponential_from_host_generator(
    x: Array, lambd: float = 1.0, *, generator: torch.Generator | None = None
) -> None:
    torch.from_numpy(x).exponential_(lambd, generator=generator)


@kernel("aten::bernoulli_.float", dtypes=REALS)
def bernoulli_from_host_generator(
    x: Array, p: float = 0.5, *, generator: torch.Generator | None = None
) -> None:
    torch.from_numpy(x).bernoulli_(p, generator=generator)


@kernel("aten::random_", dtypes=NUMBERS)
def random_from_host_generator(x: Array, *, generator: torch.Generator | None = None) -> None:
    torch.from_numpy(x).random_(generator=generator)


@kernel("aten::random_.from", dtypes=NUMBERS)
def random_range_from_host_generator(
    x: Array, from_: int, to: int | None, *, generator: torch.Generator | None = None
) -> None:
    torch.from_numpy(x).random_(from_, to, generator=generator)


@kernel("aten::random_.to", dtypes=NUMBERS)
def random_below_from_host_generator(x: Array, to: int, *, generator: torch.Generator | None = None) -> None:
    torch.from_numpy(x).random_(to, generator=generator)
