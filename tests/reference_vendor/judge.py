"""Judges compiled kernels: against the host, and both against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import flroute

Function = Callable[..., Any]


def as_tuple(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def check(function: Function, *inputs: torch.Tensor, times: float = 2) -> None:
    """On fl, by a compiled kernel: what the host gives, and not farther from the exact value than some ``times`` the host."""
    with flroute.enable("reference", fallback="error", default_device=False) as session:
        ours = as_tuple(function(*(x.to("fl", copy=True) for x in inputs)))
    assert any((d.kernel or "").startswith("reference/triton:") for d in session.decisions), session.decisions
    host = as_tuple(function(*(x.clone() for x in inputs)))
    exact = as_tuple(
        function(*(x.to(torch.float64, copy=True) if x.is_floating_point() else x for x in inputs))
    )
    for found, of_host, true in zip((t.cpu() for t in ours), host, exact, strict=True):
        assert (found.dtype, found.shape, found.stride()) == (of_host.dtype, of_host.shape, of_host.stride())
        # Its way overflows where the result does not; of an infinity, some of its vectorised forms make NaN.
        astray = of_host.isnan() & ~true.isnan() & ~found.isnan()
        theirs = torch.where(astray, true.to(of_host.dtype), of_host)
        torch.testing.assert_close(
            found, theirs, rtol=1, atol=1, equal_nan=True
        )  # NaN and infinity where they belong
        finite = theirs.isfinite() & true.isfinite()
        _check_error(found[finite], theirs[finite], true[finite], times)


def _check_error(found: torch.Tensor, theirs: torch.Tensor, true: torch.Tensor, times: float) -> None:
    if not found.numel():
        return
    eps = torch.finfo(found.dtype).eps
    if found.dtype is torch.float64:  # which is what judges: a few roundings apart
        torch.testing.assert_close(found, true, rtol=16 * eps, atol=16 * eps * float(true.abs().max()))
        return
    error, of_the_host = (found.double() - true).abs(), (theirs.double() - true).abs()
    allowed = torch.clamp_min(times * of_the_host + eps * true.abs(), times * float(of_the_host.max()))
    allowed += eps / 2 * float(true.abs().max()) + torch.finfo(found.dtype).smallest_normal
    assert bool((error <= allowed).all()), float((error / allowed).max())
