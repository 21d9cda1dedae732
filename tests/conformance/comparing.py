"""Comparing what the device made with what the host made; the host is right, or the host in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.testing import assert_close
from torch.utils._pytree import tree_flatten

from .moving import DOUBLED

TOLERANCES: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-7, 1e-7),
    torch.complex128: (1e-7, 1e-7),
    torch.float32: (1e-4, 6e-5),
    torch.complex64: (1e-4, 6e-5),
    torch.float16: (4e-3, 2e-3),
    torch.complex32: (4e-3, 2e-3),
    torch.bfloat16: (2e-2, 1e-2),
}
"""rtol and atol: room for another order of summation. In float32 the host itself is up to 4e-5 away from a float64
result on these inputs (MultiheadAttention's gradients)."""
EXACT = (0.0, 0.0)

Leaves = Callable[[], "Sequence[Any] | None"]
"""The leaves of what the host makes under other conditions, run when first asked; ``None`` if it cannot."""


def assert_same(
    actual: Any,
    expected: Any,
    device: torch.device,
    what: str,
    *,
    values: bool = True,
    inputs: Sequence[torch.Tensor] = (),
    precise: Leaves = lambda: None,
    under_mode: Leaves = lambda: None,
) -> None:
    """Same structure, and in every tensor the same device type, dtype, shape, strides and values.

    Two computations may differ by more than the tolerance because both round. Then the host in float64 is the judge: the
    device may be twice as far from it as the host is. Strides may be those of the host under a dispatch mode where the
    device is under one: PyTorch takes another way through some derivatives as soon as any mode is active.

    Args:
        actual: what the device made.
        expected: what the host made.
        device: where the tensors of ``actual`` must be; those that the host makes elsewhere (``meta``) are there too.
        what: names the compared thing in messages.
        values: False compares everything but values, for uninitialised results.
        inputs: what was computed from; a result is not held to a higher precision than theirs.
        precise: what the host makes in float64.
        under_mode: what the host makes under a dispatch mode that does nothing; only strides are taken from it.
    """
    actual_leaves, actual_structure = tree_flatten(actual)
    expected_leaves, expected_structure = tree_flatten(expected)
    assert actual_structure == expected_structure, (
        f"{what}: {actual_structure} instead of {expected_structure}"
    )
    dtypes = {tensor.dtype for tensor in inputs}
    for place, (got, wanted) in enumerate(zip(actual_leaves, expected_leaves, strict=True)):
        where = what if len(expected_leaves) == 1 else f"{what}[{place}]"
        if isinstance(wanted, torch.Tensor):
            _assert_same_facts(got, wanted, device, where)
            _assert_same_strides(got, wanted, where, _leaf(under_mode, place))
            if values and wanted.device.type == "cpu":
                within = tolerance(wanted.dtype, dtypes)
                _assert_same_values(got.detach().cpu(), wanted.detach(), where, within, _leaf(precise, place))
        elif isinstance(wanted, float) and values:
            assert_close(got, wanted, equal_nan=True)
        elif values:
            assert got == wanted, f"{where}: {got!r} instead of {wanted!r}"


def _leaf(leaves: Leaves, place: int) -> Callable[[], Any]:
    def leaf() -> Any:
        made = leaves()
        return None if made is None else made[place]

    return leaf


def _assert_same_facts(actual: Any, expected: torch.Tensor, device: torch.device, what: str) -> None:
    assert isinstance(actual, torch.Tensor), f"{what}: {type(actual)} instead of a tensor"
    wanted_device = device if expected.device.type == "cpu" else expected.device
    assert actual.device == wanted_device, f"{what}: on {actual.device} instead of {wanted_device}"
    for fact in ("dtype", "shape", "layout"):
        got, wanted = getattr(actual, fact), getattr(expected, fact)
        assert got == wanted, f"{what}: {fact} {got} instead of {wanted}"


def _assert_same_strides(
    actual: torch.Tensor, expected: torch.Tensor, what: str, under_mode: Callable[[], Any]
) -> None:
    if expected.layout is not torch.strided or expected.is_nested or actual.stride() == expected.stride():
        return
    other = under_mode()
    assert actual.stride() == (other if other is not None else expected).stride(), (
        f"{what}: strides {actual.stride()} instead of {expected.stride()} (shape {tuple(expected.shape)})"
    )


def tolerance(dtype: torch.dtype, inputs: set[torch.dtype]) -> tuple[float, float]:
    """The loosest of a result's dtype and, unless it is exact, the dtypes it was computed from."""
    if dtype not in TOLERANCES:
        return EXACT
    return max(TOLERANCES[known] for known in {dtype, *inputs} if known in TOLERANCES)


def _assert_same_values(
    actual: torch.Tensor,
    expected: torch.Tensor,
    what: str,
    within: tuple[float, float],
    precise: Callable[[], Any],
) -> None:
    if expected.dtype is torch.complex32:  # torch.equal and assert_close have no kernel for it
        actual, expected = (
            torch.view_as_real(actual.resolve_conj()),
            torch.view_as_real(expected.resolve_conj()),
        )
    if expected.layout is torch.strided and torch.equal(actual, expected):
        return  # the common case, 20 times cheaper than assert_close
    rtol, atol = within
    try:
        assert_close(
            actual, expected, rtol=rtol, atol=atol, equal_nan=True, msg=lambda text: f"{what}: {text}"
        )
    except AssertionError as error:
        judge = precise() if expected.dtype in DOUBLED else None
        if not isinstance(judge, torch.Tensor):
            raise
        if verdict := worse_than_host(actual, expected, judge.detach()):
            raise AssertionError(f"{error}\n{verdict}") from None


MARGIN = 2.0
"""How many times the host's own error the device's may be, in the largest element and in the root mean square."""
NOISE = 0.25
"""A host that is wrong by more than this part of the largest element computed noise: then the device gets no margin."""


def worse_than_host(actual: torch.Tensor, expected: torch.Tensor, precise: torch.Tensor) -> str | None:
    """Why the device's values are not as good as the host's, given those in float64; ``None`` if they are.

    One rounding to the result's dtype is allowed on top, for where the host is right by luck. Infinities and NaNs must be
    where the host has them.
    """
    double = DOUBLED[expected.dtype]
    if precise.dtype is not double or precise.shape != expected.shape or expected.layout is not torch.strided:
        return "the host in float64 makes something else"
    finite = expected.isfinite()
    device, host = actual.to(double), expected.to(double)
    if not torch.equal(finite, actual.isfinite()) or not torch.allclose(
        device[~finite], host[~finite], equal_nan=True
    ):
        return "infinities or NaNs are elsewhere than on the host"
    device, host, precise = device[finite], host[finite], precise.resolve_conj()[finite]
    if not precise.isfinite().all():
        return "in float64 the host makes infinities or NaNs elsewhere"
    rounding = precise.abs() * torch.finfo(expected.dtype).eps / 2
    ours, theirs = ((made - precise).abs() for made in (device, host))
    margin = 1.0 if theirs.amax() > NOISE * precise.abs().amax() else MARGIN
    for name, size in (("largest", torch.amax), ("root mean square", _root_mean_square)):
        measured, its_own = float(size((ours - rounding).clamp_min(0))), float(size(theirs))
        if measured > margin * its_own:
            return f"against float64 the {name} error is {measured:.3g} where the host's is {its_own:.3g}"
    return None


def _root_mean_square(errors: torch.Tensor) -> torch.Tensor:
    return errors.square().mean().sqrt()
