"""Run a kernel of the reference vendor on arrays, and hold it to PyTorch's own host implementation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from hypothesis import given as given_by_hypothesis
from hypothesis import settings
from hypothesis import strategies as st

from flroute import reference_vendor
from flroute.vendor import Kernel, Unsupported

KERNELS = [kernel for kernel in reference_vendor.kernels() if kernel.implementation == "numpy"]

FLOATS = (torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
EVERY = (*FLOATS, *INTEGERS, torch.bool, torch.float16, torch.complex64, torch.complex128)


def given(**strategies: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """hypothesis's ``given`` with few examples: there are many kernels."""
    return lambda test: settings(max_examples=15, deadline=None)(given_by_hypothesis(**strategies)(test))


def overload(op: str) -> Any:
    """``aten::add.Tensor`` as a callable."""
    name, _, suffix = op.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, name), suffix or "default")


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def mapped(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """``value`` with ``function`` applied to every tensor inside."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, (list, tuple)):
        return [mapped(function, item) for item in value]
    if isinstance(value, dict):
        return {key: mapped(function, item) for key, item in value.items()}
    return value


def chosen(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Kernel]:
    """Kernels whose dtypes and predicate admit the arguments, as the router would try them."""
    dtypes = {tensor.dtype for tensor in tensors_in((args, kwargs))}
    fit = [
        k
        for k in KERNELS
        if k.op == op and (not k.dtypes or ((k.mixed or len(dtypes) < 2) and dtypes <= set(k.dtypes)))
    ]
    return [k for k in fit if k.when is None or k.when(*args, **kwargs) is True]


def run(op: str, *args: Any, **kwargs: Any) -> Any:
    """The kernel's answer on arrays that alias the tensors, with numpy set to raise on any floating-point flag.

    Raises:
        Unsupported: no kernel takes the arguments.
    """
    arrays, named = mapped(torch.Tensor.numpy, args), mapped(torch.Tensor.numpy, kwargs)
    inputs = [tensor.numpy() for tensor in tensors_in((args, kwargs))]
    for kernel in chosen(op, args, kwargs):
        with warnings.catch_warnings(), np.errstate(all="raise"):
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "Casting complex values")  # the host's own
            try:
                answer = kernel.function(*arrays, **named)
            except Unsupported:
                continue
        for result in answer if isinstance(answer, (list, tuple)) else [answer]:
            if isinstance(result, np.ndarray):
                assert not any(np.may_share_memory(result, array) for array in inputs), "a view of an input"
        return answer
    raise Unsupported(f"no kernel of {op} takes these arguments")


def _as_list(answer: Any) -> list[Any]:
    return list(answer) if isinstance(answer, (list, tuple)) else [answer]


def agree(op: str, *args: Any, **kwargs: Any) -> None:
    """The kernel and the host give the same dtype, shape and values; see ``assert_close``."""
    untouched = mapped(torch.Tensor.clone, (args, kwargs))
    answers = _as_list(run(op, *args, **kwargs))
    assert_same_inputs(untouched, mapped(lambda t: t, (args, kwargs)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = _as_list(overload(op)(*args, **kwargs))
        exact = _as_list(overload(op)(*mapped(_double, args), **_double_dtype(mapped(_double, kwargs))))
    assert len(answers) == len(expected)
    largest = max((_largest(tensor) for tensor in tensors_in((args, kwargs))), default=0.0)
    for answer, host, reference in zip(answers, expected, exact, strict=True):
        assert_close(answer, host, reference, largest)


def _largest(tensor: torch.Tensor) -> float:
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor.resolve_conj())
    if not tensor.dtype.is_floating_point:
        return 0.0
    finite = tensor[tensor.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def assert_same_inputs(before: Any, after: Any) -> None:
    for old, new in zip(tensors_in(before), tensors_in(after), strict=True):
        assert torch.equal(old.nan_to_num(), new.nan_to_num()), "the kernel wrote into an input"


def _double(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype is torch.complex64:
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.dtype is torch.float32 else tensor


def _double_dtype(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {k: torch.float64 if v is torch.float32 else v for k, v in kwargs.items()}


def assert_close(
    answer: Any, host: torch.Tensor | None, exact: torch.Tensor | None, largest: float = 0.0
) -> None:
    """Same dtype and shape, and floats as near to ``exact`` as a few roundings allow.

    ``largest`` is the size of the largest operand: what cancels leaves a rounding error of that size. How the
    errors of kernel and host compare over many elements is the business of ``test_accuracy.py``.
    """
    if host is None or exact is None or answer is None:
        assert answer is None
        assert host is None
        return
    made = torch.from_numpy(np.array(answer))
    assert made.dtype == host.dtype
    assert made.shape == host.shape
    if host.dtype.is_complex:
        parts = [None if t is None else torch.view_as_real(t.resolve_conj()) for t in (made, host, exact)]
        made, host, exact = parts  # type: ignore[assignment]
    if not host.dtype.is_floating_point:
        assert torch.equal(made, host)
        return
    rounded = exact.to(host.dtype)
    odd = ~(made.isfinite() & host.isfinite())
    matches = [
        torch.isclose(made[odd], other[odd], rtol=0, atol=0, equal_nan=True) for other in (host, rounded)
    ]
    assert (matches[0] | matches[1]).all(), f"{made[odd]} instead of {host[odd]}"
    ours, theirs, truth = (t[~odd].double() for t in (made, host, exact))
    if not ours.numel():
        return
    eps = torch.finfo(host.dtype).eps * (
        4 if host.dtype is torch.float64 else 1
    )  # there `exact` is the host's own
    scale = max(float(truth.abs().max()), min(largest, 100.0))
    allowed = 2 * (theirs - truth).abs().max() + 8 * eps * scale
    worst = (ours - truth).abs().max()
    assert worst <= allowed, f"off by {worst:.3g}, allowed {allowed:.3g}"


# -- arguments to try ---------------------------------------------------------------------------------


def laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values, in other strides."""
    if layout == "transposed" and x.ndim > 1:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "sliced" and x.ndim > 0:
        wide = x.new_zeros(*x.shape[:-1], 2 * x.shape[-1] + 1)
        wide[..., 1::2] = x
        return wide[..., 1::2]
    if layout == "expanded" and x.ndim > 0 and x.shape[0] > 0:
        return x[:1].expand(x.shape)
    return x.clone(memory_format=torch.contiguous_format)


LAYOUTS = st.sampled_from(["contiguous", "transposed", "sliced", "expanded"])
SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 3e38, -3e38, 1e-45)


@st.composite
def values(
    draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype, special: bool = False
) -> torch.Tensor:
    """A host tensor of a shape and dtype, in some layout, with NaN, infinities and extremes if ``special``."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    if dtype.is_complex:
        parts = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
        x = torch.complex(*parts).mul_(draw(st.sampled_from([1, 5]))).to(dtype)
    elif dtype.is_floating_point:
        x = (
            torch.randn(shape, generator=generator, dtype=torch.float64)
            .mul_(draw(st.sampled_from([1, 5])))
            .to(dtype)
        )
        if special and x.numel() and draw(st.booleans()):
            flat = x.view(-1)
            for position in range(min(len(SPECIAL), flat.numel())):
                flat[position] = SPECIAL[(position + draw(st.integers(0, 7))) % len(SPECIAL)]
    elif dtype is torch.bool:
        x = torch.randint(0, 2, shape, generator=generator).bool()
    else:
        x = torch.randint(torch.iinfo(dtype).min // 2**40 if dtype is torch.int64 else torch.iinfo(dtype).min,
                          torch.iinfo(dtype).max // 2**40 if dtype is torch.int64 else torch.iinfo(dtype).max,
                          shape, generator=generator, dtype=dtype)  # fmt: skip
    return laid_out(x, draw(LAYOUTS))


SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
FULL_SHAPES = st.lists(st.integers(1, 5), max_size=4).map(tuple)


@st.composite
def broadcastable(
    draw: st.DrawFn, dtype: torch.dtype, special: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors whose shapes broadcast together."""
    shape = draw(SHAPES)
    other = tuple(draw(st.sampled_from([size, 1])) for size in shape[draw(st.integers(0, len(shape))) :])
    pair = draw(values(shape, dtype, special)), draw(values(other, dtype, special))
    return pair if draw(st.booleans()) else (pair[1], pair[0])
