"""Comparing what the device made with what the host made; the host is right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.testing import assert_close
from torch.utils._pytree import tree_flatten

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


def assert_same(
    actual: Any,
    expected: Any,
    device: torch.device,
    what: str,
    *,
    values: bool = True,
    inputs: Sequence[torch.Tensor] = (),
) -> None:
    """Same structure, and in every tensor the same device type, dtype, shape, strides and values.

    Args:
        actual: what the device made.
        expected: what the host made.
        device: where the tensors of ``actual`` must be; those that the host makes elsewhere (``meta``) are there too.
        what: names the compared thing in messages.
        values: False compares everything but values, for uninitialised results.
        inputs: what was computed from; a result is not held to a higher precision than theirs.
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
            _assert_same_tensor(got, wanted, device, where, dtypes if values else None)
        elif isinstance(wanted, float) and values:
            assert_close(got, wanted, equal_nan=True)
        elif values:
            assert got == wanted, f"{where}: {got!r} instead of {wanted!r}"


def _assert_same_tensor(
    actual: torch.Tensor,
    expected: torch.Tensor,
    device: torch.device,
    what: str,
    inputs: set[torch.dtype] | None,
) -> None:
    assert isinstance(actual, torch.Tensor), f"{what}: {type(actual)} instead of a tensor"
    wanted_device = device if expected.device.type == "cpu" else expected.device
    assert actual.device == wanted_device, f"{what}: on {actual.device} instead of {wanted_device}"
    for fact in ("dtype", "shape", "layout"):
        got, wanted = getattr(actual, fact), getattr(expected, fact)
        assert got == wanted, f"{what}: {fact} {got} instead of {wanted}"
    if expected.layout is torch.strided and not expected.is_nested:
        assert actual.stride() == expected.stride(), (
            f"{what}: strides {actual.stride()} instead of {expected.stride()} (shape {tuple(expected.shape)})"
        )
    if inputs is not None and expected.device.type == "cpu":
        rtol, atol = tolerance(expected.dtype, inputs)
        _assert_same_values(actual.detach().cpu(), expected.detach(), what, rtol, atol)


def tolerance(dtype: torch.dtype, inputs: set[torch.dtype]) -> tuple[float, float]:
    """The loosest of a result's dtype and, unless it is exact, the dtypes it was computed from."""
    if dtype not in TOLERANCES:
        return EXACT
    return max(TOLERANCES[known] for known in {dtype, *inputs} if known in TOLERANCES)


def _assert_same_values(
    actual: torch.Tensor, expected: torch.Tensor, what: str, rtol: float, atol: float
) -> None:
    if expected.dtype is torch.complex32:  # torch.equal and assert_close have no kernel for it
        actual, expected = (
            torch.view_as_real(actual.resolve_conj()),
            torch.view_as_real(expected.resolve_conj()),
        )
    if expected.layout is torch.strided and torch.equal(actual, expected):
        return  # the common case, 20 times cheaper than assert_close
    assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True, msg=lambda text: f"{what}: {text}")
