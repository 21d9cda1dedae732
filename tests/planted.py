"""The faulty vendor in the running process: what finds numeric faults is tried on faults that are known.

A test file that says ``plant = pytest.fixture(planting)`` has ``plant("wrong_epsilon")``: the vendor ``faulty`` with that fault,
until the test ends or plants others. Faults are in ``FAULTS``, the programs they show in in ``models``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from support import Vendors

sys.path.append(str(Path(__file__).parent / "plugins" / "faulty_vendor"))

import flroute_faulty_vendor
from flroute_faulty_vendor import FAULTS, Fault, models

__all__ = ["FAULTS", "Fault", "Plant", "models", "planting"]

Plant = Callable[..., torch.device]
"""Takes the names of faults, and gives the device of the vendor ``faulty`` that has them."""


def planting() -> Iterator[Plant]:
    """The fixture ``plant``."""
    made: list[Vendors] = []

    def plant(*faults: str) -> torch.device:
        for earlier in made:
            earlier.forget()
        made[:] = [Vendors()]
        (device,) = made[0].register(flroute_faulty_vendor.plugin(*faults), "faulty")
        return device.torch_device

    yield plant
    for vendors in made:
        vendors.forget()
