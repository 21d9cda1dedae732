"""``torch.distributed`` under the alias: nccl is the device's own backend."""

from __future__ import annotations

import functools
from typing import Any

from flroute.cuda_alias.alias import current
from flroute.cuda_alias.callers import asker, is_own
from flroute.cuda_alias.ordinals import ALIAS
from flroute.device.table import DEVICE_TYPE
from flroute.distributed.backend import BACKEND

NCCL = "nccl"


def process_group(original: Any) -> Any:
    """``init_process_group`` and ``new_group``."""

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        alias = current()
        named = {key: _meant(key, value) for key, value in kwargs.items()}
        placed = [_meant("", value) for value in args]
        if placed != list(args) or named != kwargs:
            alias.uses.add(f"torch.distributed.{original.__name__}", asker(1))
        return original(*placed, **named)

    return make


def _meant(key: str, value: Any) -> Any:
    if key == "device_id" and value is not None:
        return current().ordinals.device(value)
    if not isinstance(value, str):
        return value
    if value.lower() == NCCL:
        return BACKEND
    parts = [part.partition(":") for part in value.split(",")]
    if not any(kind == ALIAS or backend == NCCL for kind, _, backend in parts):
        return value
    return ",".join(
        f"{DEVICE_TYPE if kind == ALIAS else kind}{colon}{BACKEND if backend == NCCL else backend}"
        for kind, colon, backend in parts
    )


def backend(original: Any) -> Any:
    """``get_backend``."""

    @functools.wraps(original)
    def get(*args: Any, **kwargs: Any) -> str:
        found: str = original(*args, **kwargs)
        return NCCL if found == BACKEND and not is_own(asker(1)) else found

    return get
