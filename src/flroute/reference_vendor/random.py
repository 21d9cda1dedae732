"""Random numbers, drawn from the host's generator: one seed gives one stream on the host and on the device.

The kernels fill the arrays they receive through PyTorch's own samplers, so that every draw is the host's, number for number.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch

from flroute.reference_vendor.support import FLOATS, NUMBERS, Array, Result
from flroute.vendor import Unsupported, kernel

Generator: TypeAlias = torch.Generator | None


_EVERY_FLOAT = (*FLOATS, "float16", "bfloat16")
_EVERY_NUMBER = (*NUMBERS, "float16", "bfloat16")
_EVERY_REAL = (*_EVERY_NUMBER, "bool")
_BFLOAT16 = np.dtype(np.uint16)  # numpy lacks it: its bits come as integers


def _host(x: Array) -> torch.Tensor:
    """The host tensor that is the array."""
    return (
        torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
        if x.dtype == _BFLOAT16
        else torch.from_numpy(x)
    )


def _array(made: torch.Tensor) -> Result:
    """What the host made."""
    return made.view(torch.int16).numpy().view(_BFLOAT16) if made.dtype is torch.bfloat16 else made.numpy()


# -- fill a tensor ------------------------------------------------------------------------------------


@kernel("aten::normal_", dtypes=_EVERY_FLOAT)
def normal_from_host_generator(
    x: Array, mean: float = 0.0, std: float = 1.0, *, generator: Generator = None
) -> None:
    _host(x).normal_(mean, std, generator=generator)


@kernel("aten::uniform_", dtypes=_EVERY_FLOAT)
def uniform_from_host_generator(
    x: Array, from_: float = 0.0, to: float = 1.0, *, generator: Generator = None
) -> None:
    _host(x).uniform_(from_, to, generator=generator)


@kernel("aten::exponential_", dtypes=_EVERY_FLOAT)
def exponential_from_host_generator(x: Array, lambd: float = 1.0, *, generator: Generator = None) -> None:
    _host(x).exponential_(lambd, generator=generator)


@kernel("aten::cauchy_", dtypes=_EVERY_FLOAT)
def cauchy_from_host_generator(
    x: Array, median: float = 0.0, sigma: float = 1.0, *, generator: Generator = None
) -> None:
    _host(x).cauchy_(median, sigma, generator=generator)


@kernel("aten::log_normal_", dtypes=_EVERY_FLOAT)
def log_normal_from_host_generator(
    x: Array, mean: float = 1.0, std: float = 2.0, *, generator: Generator = None
) -> None:
    _host(x).log_normal_(mean, std, generator=generator)


@kernel("aten::geometric_", dtypes=_EVERY_NUMBER)
def geometric_from_host_generator(x: Array, p: float, *, generator: Generator = None) -> None:
    _host(x).geometric_(p, generator=generator)


@kernel("aten::bernoulli_.float", dtypes=_EVERY_REAL)
def bernoulli_from_host_generator(x: Array, p: float = 0.5, *, generator: Generator = None) -> None:
    _host(x).bernoulli_(p, generator=generator)


def _float_probabilities(x: torch.Tensor, p: torch.Tensor, **_: object) -> bool | str:
    return p.dtype.is_floating_point or f"probabilities of {p.dtype}"


@kernel("aten::bernoulli_.Tensor", dtypes=_EVERY_REAL, mixed=True, when=_float_probabilities)
def bernoulli_of_each_from_host_generator(x: Array, p: Array, *, generator: Generator = None) -> None:
    _host(x).bernoulli_(_host(p), generator=generator)


@kernel("aten::random_", dtypes=_EVERY_NUMBER)
def random_from_host_generator(x: Array, *, generator: Generator = None) -> None:
    _host(x).random_(generator=generator)


@kernel("aten::random_.from", dtypes=_EVERY_NUMBER)
def random_range_from_host_generator(
    x: Array, from_: int, to: int | None, *, generator: Generator = None
) -> None:
    _host(x).random_(from_, to, generator=generator)


@kernel("aten::random_.to", dtypes=_EVERY_NUMBER)
def random_below_from_host_generator(x: Array, to: int, *, generator: Generator = None) -> None:
    _host(x).random_(to, generator=generator)


@kernel("aten::randperm.generator_out", dtypes=_EVERY_NUMBER)
def permutation_from_host_generator(n: int, *, generator: Generator, out: Array) -> None:
    if out.shape != (n,):
        raise Unsupported(f"a permutation of {n} into a tensor of shape {out.shape}")
    torch.randperm(n, generator=generator, out=_host(out))


# -- make a tensor ------------------------------------------------------------------------------------


@kernel("aten::normal.Tensor_float", dtypes=_EVERY_FLOAT)
def normal_of_means_from_host_generator(
    mean: Array, std: float = 1.0, *, generator: Generator = None
) -> Result:
    return _array(torch.normal(_host(mean), std, generator=generator))


@kernel("aten::normal.float_Tensor", dtypes=_EVERY_FLOAT)
def normal_of_deviations_from_host_generator(
    mean: float, std: Array, *, generator: Generator = None
) -> Result:
    return _array(torch.normal(mean, _host(std), generator=generator))


@kernel("aten::normal.Tensor_Tensor", dtypes=_EVERY_FLOAT)
def normal_of_each_from_host_generator(mean: Array, std: Array, *, generator: Generator = None) -> Result:
    return _array(torch.normal(_host(mean), _host(std), generator=generator))


@kernel("aten::multinomial", dtypes=_EVERY_FLOAT)
def multinomial_from_host_generator(
    x: Array, num_samples: int, replacement: bool = False, *, generator: Generator = None
) -> Result:
    return _array(torch.multinomial(_host(x), num_samples, replacement, generator=generator))


@kernel("aten::poisson", dtypes=_EVERY_FLOAT)
def poisson_from_host_generator(x: Array, generator: Generator = None) -> Result:
    return _array(torch.poisson(_host(x), generator=generator))


@kernel("aten::binomial", dtypes=FLOATS)
def binomial_from_host_generator(count: Array, prob: Array, generator: Generator = None) -> Result:
    return _array(torch.binomial(_host(count), _host(prob), generator=generator))


@kernel("aten::_standard_gamma", dtypes=FLOATS)
def gamma_from_host_generator(x: Array, generator: Generator = None) -> Result:
    return _array(torch.ops.aten._standard_gamma(_host(x), generator=generator))
