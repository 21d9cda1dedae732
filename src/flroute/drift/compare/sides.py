"""Where a model is run to be compared: a device of flroute's, the host, or the host in float64."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flroute import registry, session
from flroute.device import rng
from flroute.device.table import DEVICE_TYPE, Device, devices
from flroute.device_names import resolve_device
from flroute.drift.compare.trees import mapped
from flroute.errors import FlrouteError
from flroute.settings import Settings

HOST = "cpu"
HOST_FLOAT64 = "host-float64"


@dataclass(frozen=True)
class Place:
    """Where a model runs.

    Attributes:
        name: as asked for.
        device: ``None`` for the host.
        wide: floating-point tensors become float64 there.
    """

    name: str
    device: Device | None
    wide: bool = False

    @property
    def torch_device(self) -> torch.device:
        """Where its tensors are."""
        return torch.device("cpu") if self.device is None else self.device.torch_device

    @property
    def in_words(self) -> str:
        """``reference:0 (reference 1.0)``, or what the host is."""
        if self.device is None:
            return f"the host's PyTorch {torch.__version__}" + (" in float64" if self.wide else "")
        vendor = registry.load().vendor(self.device.vendor)
        return f"{self.device.vendor_device} ({vendor.name} {vendor.version})"

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor, here; it wants a gradient if the tensor does."""
        dtype = torch.float64 if self.wide and tensor.is_floating_point() else tensor.dtype
        made = tensor.detach().to(self.torch_device, dtype, copy=True)
        return made.requires_grad_(tensor.requires_grad)

    def model(self, model: torch.nn.Module) -> torch.nn.Module:
        """A copy of a model, here, with the same parameters.

        Raises:
            FlrouteError: the model cannot be copied.
        """
        try:
            made = copy.deepcopy(model)
        except (
            Exception
        ) as error:  # a model's own __deepcopy__ may raise anything, and it is said which model
            raise FlrouteError(
                f"{type(model).__name__} cannot be copied, and each side of a comparison needs a model of its own: {error}. "
                f"Tensors that a module keeps outside its parameters and buffers may have to be detached first"
            ) from error
        made = made.to(self.torch_device)
        return made.double() if self.wide else made

    def inputs(self, inputs: Any) -> Any:
        """A copy of a model's inputs, here."""
        return mapped(self.moved, inputs)

    @contextmanager
    def running(self, settings: Mapping[str, Any]) -> Iterator[Settings | None]:
        """Inside, what is called runs here; gives the settings of the session, if there is one."""
        if self.device is None:
            with torch.device("cpu"):  # a session around us may have another default
                yield None
            return
        with session.enable(self.device.vendor_device, **{"fallback": "allow", **settings}) as opened:
            yield opened.settings


def place_named(name: str | torch.device) -> Place:
    """The place that a name means: ``cpu``, ``host-float64``, or a vendor or device as for ``enable``.

    Raises:
        UnknownVendorError: no such vendor.
        DeviceError: no such device.
    """
    name = str(name)
    if name in (HOST, HOST_FLOAT64):
        return Place(name, None, wide=name == HOST_FLOAT64)
    return Place(name, resolve_device(name))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, PyTorch, numpy and Python draw the numbers of ``seed``; afterwards their generators are as they were."""
    python, of_numpy, of_torch = random.getstate(), np.random.get_state(), torch.get_rng_state()
    own = {i: rng.get_rng_state(f"{DEVICE_TYPE}:{i}") for i in range(len(devices())) if rng.has_own_state(i)}
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)
        torch.set_rng_state(of_torch)
        for index, state in own.items():
            rng.set_rng_state(state, f"{DEVICE_TYPE}:{index}")
