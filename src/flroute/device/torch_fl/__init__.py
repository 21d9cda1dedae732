"""``torch.fl``: the device's module, with the names ``torch.cuda`` has.

One file for each topic; ``absent`` says of every other name of ``torch.cuda`` why it is not here, and ``accelerator`` has
``torch.accelerator`` answer alike.

Example:
    >>> import flroute, torch
    >>> torch.fl.is_available()
    True
"""

from __future__ import annotations

from typing import Any

import torch

from flroute.device.torch_fl import amp, devices, memory, random, streams
from flroute.device.torch_fl.absent import why_absent

# each topic's file lists its names, once
from flroute.device.torch_fl.devices import *  # noqa: F403
from flroute.device.torch_fl.memory import *  # noqa: F403
from flroute.device.torch_fl.random import *  # noqa: F403
from flroute.device.torch_fl.streams import *  # noqa: F403

__all__ = ["amp", "get_amp_supported_dtype", "memory", "random", "streams"]
__all__ += devices.__all__
__all__ += memory.__all__
__all__ += random.__all__
__all__ += streams.__all__

SUBMODULES = {"amp": amp, "devices": devices, "memory": memory, "random": random, "streams": streams}
"""What ``import torch.fl.memory`` and the like find."""

_initialized = True  # what torch.utils.checkpoint asks before it saves a device's random state


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes ``torch.autocast("fl")`` accepts."""
    return [torch.float16, torch.bfloat16]


def __dir__() -> list[str]:
    return sorted(__all__)


def _is_in_bad_fork() -> bool:
    return False


def __getattr__(name: str) -> Any:
    reason = why_absent(name)
    if reason is not None:
        raise AttributeError(f"torch.fl has no {name!r}: {reason}")
    raise AttributeError(
        f"torch.fl has no {name!r} in this version of flroute; it has: {', '.join(sorted(__all__))}"
    )
