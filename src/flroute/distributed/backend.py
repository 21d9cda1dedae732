"""Registering the backend ``flroute`` and the collectives of ``fl`` with PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any

import torch

from flroute.device.table import DEVICE_TYPE
from flroute.routing.device_ops import DEVICE_OPS
from flroute.torch_compat import collective_ops, find_op, replace_kernel

BACKEND = "flroute"

Route = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


@cache
def install(route: Route) -> None:
    """Make ``flroute`` the backend of ``fl``, and send its collectives to ``route(op, args, kwargs)``.

    Does nothing where PyTorch was built without ``torch.distributed``.
    """
    if not torch.distributed.is_available():
        return
    from flroute.distributed.collectives import COLLECTIVES
    from flroute.distributed.handler import CollectiveHandler

    torch.distributed.Backend.register_backend(BACKEND, _make_transport, devices=[DEVICE_TYPE])
    library = _library()
    for name in collective_ops():
        if name in COLLECTIVES:
            DEVICE_OPS[name] = CollectiveHandler
            replace_kernel(library, name, _routed(route, find_op(name)))


def _make_transport(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """What carries the bytes of one process group between its ranks."""
    return torch.distributed.ProcessGroupGloo(store, rank, size, timeout=timeout)


def _routed(route: Route, op: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: route(op, args, kwargs)


@cache
def _library() -> torch.library.Library:
    return torch.library.Library("c10d", "IMPL")  # unregisters when it dies: kept for the life of the process
