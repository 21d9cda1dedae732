"""What PyTorch itself says the results of a call look like: the op run on meta tensors, which have no data."""

from __future__ import annotations

from typing import Any

import torch

_META = torch.device("meta")


def expected_results(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor | None] | None:
    """Meta tensors with the shape, strides and dtype of each result.

    Returns:
        One entry per tensor result, or ``None`` if PyTorch cannot tell without the data (``nonzero``, ``unique``).
    """
    try:
        with torch.no_grad():
            result = op(*(_to_meta(a) for a in args), **{name: _to_meta(value) for name, value in kwargs.items()})
    except (NotImplementedError, RuntimeError, ValueError, TypeError, AssertionError, IndexError):
        # No meta kernel, or one that needs data: PyTorch raises any of these, and each means only "cannot tell".
        return None
    results = list(result) if isinstance(result, tuple | list) else [result]
    if not all(r is None or isinstance(r, torch.Tensor) for r in results):
        return None
    return results


def _to_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        meta = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_META)
        return meta
    if isinstance(value, torch.device):
        return _META
    if isinstance(value, list | tuple):
        return type(value)(_to_meta(item) for item in value)
    if isinstance(value, torch.Generator):
        return None
    return value
