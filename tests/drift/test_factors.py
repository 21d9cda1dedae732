"""Factorizations: signs and orders that are as right are no errors, and what is no factor is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import flroute
from flroute.vendor import Kernel
from support import COPY, Made, Vendors, named, throw_away_vendors

vendors = pytest.fixture(throw_away_vendors)

Kernels = dict[str, Callable[..., Any]]


def eigh(a: Any, uplo: str = "L", compute_v: bool = True) -> Any:
    values, vectors = np.linalg.eigh(a, uplo)
    return values, vectors * np.where(np.arange(len(values)) % 2, 1, -1).astype(a.dtype)


def svd(a: Any, full_matrices: bool = False, compute_uv: bool = True, *, driver: Any = None) -> Any:
    u, s, vh = np.linalg.svd(a, full_matrices=full_matrices)
    return -u, s, -vh


def qr(a: Any, mode: str = "reduced") -> Any:
    q, r = np.linalg.qr(a)
    return -q, -r


def eig(a: Any) -> Any:
    values, vectors = np.linalg.eig(a.astype(np.float64))
    return values.astype(np.complex64), (vectors * 1j).astype(np.complex64)


OTHERS: Kernels = {
    "aten::_linalg_eigh": eigh,
    "aten::_linalg_svd": svd,
    "aten::linalg_qr": qr,
    "aten::linalg_eig": eig,
}
CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "aten::_linalg_eigh": lambda a: torch.linalg.eigh(a @ a.mT).eigenvectors,
    "aten::_linalg_svd": lambda a: torch.linalg.svd(a, full_matrices=False).U,
    "aten::linalg_qr": lambda a: torch.linalg.qr(a).Q,
    "aten::linalg_eig": lambda a: torch.linalg.eig(a).eigenvectors.abs(),
}


class Factors(nn.Module):
    """A module that is one call."""

    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, a: Tensor) -> Tensor:
        return self.call(a)


def matrix() -> Tensor:
    return torch.randn(5, 5, generator=torch.Generator().manual_seed(0))


def vendor_of(vendors: Vendors, op: str, function: Callable[..., Any]) -> Made:
    return vendors(COPY, Kernel(op, named("other", function)))


@pytest.mark.parametrize("op", OTHERS)
def test_other_factors_are_as_right(vendors: Vendors, op: str) -> None:
    made, model = vendor_of(vendors, op, OTHERS[op]), Factors(CALLS[op])
    with flroute.enable(device=made.name, fallback="allow") as session, flroute.shadow(model) as s:
        model(matrix().to(made.device))
    assert op in {d.op for d in session.decisions if d.route == "native"}
    assert s.ok, s
    found = flroute.compare(model, matrix(), made.name, backward=False, fallback="allow")
    assert found.passed, found
    if op != "aten::linalg_eig":  # whose other vectors are no more than complex multiples
        assert any("finds other factors, which are as right" in remark for remark in found.remarks)


@pytest.mark.parametrize("op", OTHERS)
def test_what_makes_another_matrix_is_wrong(vendors: Vendors, op: str) -> None:
    def wrong(a: Any, *args: Any, **kwargs: Any) -> Any:
        found = OTHERS[op](a, *args, **kwargs)
        return tuple(f + np.float32(1e-3) if f.ndim == 2 else f for f in found)

    wrong.__wrapped__ = OTHERS[op]  # type: ignore[attr-defined] -- the signature is what registration checks
    made, model = vendor_of(vendors, op, wrong), Factors(CALLS[op])
    with flroute.enable(device=made.name, fallback="allow"), flroute.shadow(model) as s:
        model(matrix().to(made.device))
    assert [row.op for row in s.wrong] == [op]
    assert 1e-4 < s.worst.local.max_abs < 0.1
    found = flroute.compare(model, matrix(), made.name, backward=False, fallback="allow")
    assert not found.passed
    assert found.first_divergence.op == op


def test_equal_eigenvalues_have_any_vectors() -> None:
    model = Factors(lambda a: torch.linalg.eigh(a).eigenvectors)
    rotated = torch.linalg.qr(matrix()).Q
    a = (rotated * torch.tensor([1.0, 1.0, 1.0, 2.0, 2.0])) @ rotated.mT
    assert flroute.compare(model, a, "reference", backward=False).passed
    with flroute.shadow(model) as s:
        model(a.to("fl"))
    assert s.ok, s
