"""Automatic mixed precision under cuda's names: ``torch.amp`` for the device."""

from __future__ import annotations

import functools

import torch

from flroute.device.table import DEVICE_TYPE
from flroute.device.torch_fl.absent import absent_from

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class autocast(torch.amp.autocast):  # noqa: N801 -- torch.cuda.amp.autocast's name
    """``torch.autocast`` on the device.

    Example:
        >>> import flroute, torch
        >>> with torch.fl.amp.autocast(dtype=torch.bfloat16):
        ...     torch.is_autocast_enabled("fl")
        True
    """

    def __init__(
        self, enabled: bool = True, dtype: torch.dtype | None = None, cache_enabled: bool | None = None
    ) -> None:
        super().__init__(DEVICE_TYPE, enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler`` for the device; the arguments are its own."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().__init__(DEVICE_TYPE, init_scale, growth_factor, backoff_factor, growth_interval, enabled)


custom_fwd = functools.partial(torch.amp.custom_fwd, device_type=DEVICE_TYPE)
custom_bwd = functools.partial(torch.amp.custom_bwd, device_type=DEVICE_TYPE)

__getattr__ = absent_from("amp")
