"""Ops of the user's own: a kernel for cuda is one for the device, and the code of each hears of cuda."""

from __future__ import annotations

import functools
from typing import Any

import torch

from flroute.cuda_alias.alias import current
from flroute.cuda_alias.answers import hears_of_cuda
from flroute.cuda_alias.callers import asker, is_own, registrar
from flroute.errors import AliasError

_CUDA, _DEVICE = "CUDA", "PrivateUse1"


def made(original: Any) -> Any:
    """``torch.library.Library.__init__``."""

    @functools.wraps(original)
    def init(self: Any, ns: str, kind: str, dispatch_key: str = "") -> None:
        original(self, ns, kind, dispatch_key if is_own(registrar(asker(1))) else _meant(dispatch_key))

    return init


def registered(original: Any) -> Any:
    """``torch.library.Library.impl``, which ``torch.library.custom_op``, ``impl`` and ``register_kernel`` call."""

    @functools.wraps(original)
    def impl(self: Any, op_name: Any, fn: Any, dispatch_key: str = "", **kwargs: Any) -> None:
        frame = registrar(asker(1))
        if is_own(frame):
            original(self, op_name, fn, dispatch_key, **kwargs)
            return
        meant = _meant(dispatch_key)
        if meant != dispatch_key:
            if self.ns == "aten":
                raise AliasError(
                    f"{op_name} of PyTorch's own cannot be given a kernel for {dispatch_key}: which one runs is the router's "
                    f"choice. Register it with flroute.vendor.kernel"
                )
            current().uses.add("torch.library.Library.impl", frame)
        told = fn if fn is torch.library.fallthrough_kernel else hears_of_cuda(fn)
        original(self, op_name, told, meant, **kwargs)

    return impl


def _meant(key: str) -> str:
    """``PrivateUse1`` for ``CUDA``, ``AutogradPrivateUse1`` for ``AutogradCUDA``."""
    return key.removesuffix(_CUDA) + _DEVICE if key.endswith(_CUDA) else key
