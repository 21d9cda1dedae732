"""Registering the device with PyTorch, once per process."""

from __future__ import annotations

import functools
import threading
import warnings
from typing import Any

import torch

from flroute.device import autocast, guard, parameters, process_cures, serialization, table, torch_fl
from flroute.distributed import backend as collectives
from flroute.errors import CompatibilityError, SettingsError
from flroute.routing import registration
from flroute.settings import load_settings
from flroute.torch_compat import (
    DeviceWork,
    function_stack_length,
    join_profiler,
    register_device,
    skip_in_dynamo,
    without_function_modes,
)

_lock = threading.RLock()
_active = False

failure: SettingsError | CompatibilityError | None = None
"""Why the import did not register the device."""


def is_active() -> bool:
    """Whether ``fl`` is registered."""
    return _active


def activate() -> None:
    """Register ``fl``; does nothing if it is.

    Raises:
        CompatibilityError: another package holds PyTorch's slot for out-of-tree devices.
    """
    global _active
    if _active:
        return
    with _lock:
        if _active:
            return
        register_device(table.DEVICE_TYPE, torch_fl, torch_fl.SUBMODULES)
        registration.register(_route)
        autocast.install()
        collectives.install(_route)
        guard.install()
        parameters.install()
        serialization.install()
        for cure in CURES:
            cure.install()
        _active = True


table.set_activation(activate)


def _start_work(profile: Any) -> DeviceWork:
    from flroute.torch_profiler import Work  # sessions, which it asks, come after the device

    return Work(profile)


CURES: tuple[process_cures.Cure, ...] = (
    *process_cures.CURES,
    process_cures.Cure(
        "torch.profiler",
        "its tables and traces would have the host's part of each call only",
        functools.cache(functools.partial(join_profiler, table.DEVICE_TYPE, _start_work)),
    ),
)
"""All that registering the device changes in the process."""


def _route(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    from flroute.routers import router_in_force

    if not function_stack_length():
        return router_in_force()(op, args, kwargs)
    with without_function_modes():
        return router_in_force()(op, args, kwargs)


skip_in_dynamo(_route)


def _another_accelerator() -> bool:
    try:
        return torch.accelerator.is_available()
    except RuntimeError:  # one is registered and cannot say: it is there all the same
        return True


def activate_if_alone() -> bool:
    """Register ``fl`` unless PyTorch has another accelerator: registering makes ``fl`` the current one, ahead of cuda.

    ``FLROUTE_AUTOLOAD=1`` registers in any case, ``FLROUTE_AUTOLOAD=0`` in none; ``enable()`` registers when needed.
    """
    global failure
    try:
        wanted = load_settings().autoload
        if wanted is None:
            wanted = not _another_accelerator()
        if wanted:
            activate()
    except (SettingsError, CompatibilityError) as error:
        # Importing a package must not fail for a typing error in a settings file; ``enable`` and ``doctor`` say it.
        failure = error
        if isinstance(error, SettingsError):  # else all that a script shows is that PyTorch knows no 'fl'
            warnings.warn(f"there is no device {table.DEVICE_TYPE!r}: {error}", RuntimeWarning, stacklevel=2)
        return False
    return wanted
