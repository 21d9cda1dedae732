"""Comparing what the device made with what the host made; the host is right."""

from __future__ import annotations

from typing import Any

import torch
from torch.testing import assert_close
from torch.utils._pytree import tree_flatten

TOLERANCES: dict[torch.dtype, tuple[float, float]] = {  # rtol, atol: room for another order of summation
    torch.float64: (1e-7, 1e-7),
    torch.complex128: (1e-7, 1e-7),
    torch.float32: (1e-4, 1e-4),
    torch.complex64: (1e-4, 1e-4),
    torch.float16: (4e-3, 5e-3),
    torch.complex32: (4e-3, 5e-3),
    torch.bfloat16: (2e-2, 5e-2),
}
EXACT = (0.0, 0.0)


def assert_same(actual: Any, expected: Any, device: torch.device, what: str, *, values: bool = True) -> None:
    """Same structure, and in every tensor the same device type, dtype, shape, strides and values.

    Args:
        actual: what the device made.
        expected: what the host made.
        device: where the tensors of ``actual`` must be; those that the host makes elsewhere (``meta``) are there too.
        what: names the compared thing in messages.
        values: False compares everything but values, for uninitialised results.
    """
    actual_leaves, actual_structure = tree_flatten(actual)
    expected_leaves, expected_structure = tree_flatten(expected)
    assert actual_structure == expected_structure, (
        f"{what}: {actual_structure} instead of {expected_structure}"
    )
    for place, (got, wanted) in enumerate(zip(actual_leaves, expected_leaves, strict=True)):
        where = what if len(expected_leaves) == 1 else f"{what}[{place}]"
        if isinstance(wanted, torch.Tensor):
            _assert_same_tensor(got, wanted, device, where, values)
        elif isinstance(wanted, float) and values:
            assert_close(got, wanted, equal_nan=True)
        elif values:
            assert got == wanted, f"{where}: {got!r} instead of {wanted!r}"


def _assert_same_tensor(
    actual: torch.Tensor, expected: torch.Tensor, device: torch.device, what: str, values: bool
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
    if values and expected.device.type == "cpu":
        _assert_same_values(actual.detach().cpu(), expected.detach(), what)


def _assert_same_values(actual: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    if expected.dtype is torch.complex32:  # torch.equal and assert_close have no kernel for it
        actual, expected = (
            torch.view_as_real(actual.resolve_conj()),
            torch.view_as_real(expected.resolve_conj()),
        )
    if expected.layout is torch.strided and torch.equal(actual, expected):
        return  # the common case, 20 times cheaper than assert_close
    rtol, atol = TOLERANCES.get(expected.dtype, EXACT)
    assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True, msg=lambda text: f"{what}: {text}")
