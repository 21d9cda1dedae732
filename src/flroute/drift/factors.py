"""Factors of a matrix: others may be as right (signs of vectors, vectors of equal values), so they are judged by what they make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flroute.drift.tolerances import Reading, Tolerance, reading

Pair = tuple[Tensor, Tensor]
"""What factors make, and what they are to make."""


def _symmetric(a: Tensor, uplo: str = "L", *_more: Any) -> Tensor:
    """The matrix that one triangle says."""
    lower = a.tril() if uplo.upper() == "L" else a.triu().mH
    return lower + lower.tril(-1).mH


def _of_eigh(args: Sequence[Any], results: Sequence[Tensor]) -> list[Pair]:
    values, vectors = results
    return [((vectors * values.unsqueeze(-2)) @ vectors.mH, _symmetric(*args)), _orthonormal(vectors)]


def _of_eig(args: Sequence[Any], results: Sequence[Tensor]) -> list[Pair]:
    values, vectors = results
    sizes = vectors.abs().square().sum(-2)
    return [
        (args[0].to(vectors.dtype) @ vectors, vectors * values.unsqueeze(-2)),
        (sizes, torch.ones_like(sizes)),
    ]


def _of_svd(args: Sequence[Any], results: Sequence[Tensor]) -> list[Pair]:
    left, values, right = results
    count = values.shape[-1]
    product = (left[..., :count] * values.unsqueeze(-2)) @ right[..., :count, :]
    return [(product, args[0]), _orthonormal(left), _orthonormal(right.mH)]


def _of_qr(args: Sequence[Any], results: Sequence[Tensor]) -> list[Pair]:
    q, r = results
    return [(q @ r, args[0]), _orthonormal(q), (r, r.triu())]


def _orthonormal(columns: Tensor) -> Pair:
    product = columns.mH @ columns
    return product, torch.eye(columns.shape[-1], dtype=product.dtype, device="cpu").expand_as(product)


class _Factors(NamedTuple):
    """Which results of an op have others that are as right, and what they all make."""

    places: tuple[int, ...]
    make: Callable[[Sequence[Any], Sequence[Tensor]], list[Pair]]


_FACTORS: dict[str, _Factors] = {
    "aten::_linalg_eigh": _Factors((1,), _of_eigh),
    "aten::linalg_eig": _Factors((1,), _of_eig),
    "aten::_linalg_svd": _Factors((0, 2), _of_svd),
    "aten::linalg_qr": _Factors((0, 1), _of_qr),
}


def is_factor(op: str, place: int) -> bool:
    """Whether others than a result are as right.

    Args:
        op: that made it: ``aten::_linalg_eigh``.
        place: of the result among the op's.

    Example:
        >>> is_factor("aten::_linalg_eigh", 0), is_factor("aten::_linalg_eigh", 1)
        (False, True)
    """
    found = _FACTORS.get(op.partition(".")[0])
    return found is not None and place in found.places


def judged_by_product(
    op: str, args: Sequence[Any], results: Sequence[Tensor], allowed: Tolerance
) -> tuple[Reading, Pair] | None:
    """How far from what they are to make factors are, and in which respect they are farthest from it.

    Args:
        op: that found them.
        args: of its call, with tensors on the host in the reference's dtype.
        results: all of them, on the host likewise.
        allowed: for a result of the op.

    Returns:
        ``None`` where only some of the factors were asked for.
    """
    if not all(tensor.numel() for tensor in results):
        return None
    pairs = _FACTORS[op.partition(".")[0]].make(args, results)
    found = [(reading(made, wanted, allowed), (made, wanted)) for made, wanted in pairs]
    return max(found, key=lambda item: item[0].excess)
