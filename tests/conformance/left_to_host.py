"""Ops that PyTorch's own samples in float32 reach and the reference vendor leaves to the host, all of their calls or some."""

from __future__ import annotations

LEFT_TO_HOST: dict[str, str] = {
    "aten::geqrf": "of matrices without elements numpy keeps no layout, and PyTorch has no rule of its own for it",
    "aten::max_unpool2d": "of channels-last images: the host lays the result out likewise, PyTorch's shape rules do not say so",
}
