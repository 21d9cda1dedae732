"""``flroute doctor``: what is installed, what failed to load, and what to do about it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from flroute.errors import FlrouteError

if TYPE_CHECKING:
    from rich.console import RenderableType


class State(str, Enum):
    """How a check ended."""

    OK = "ok"
    NOTE = "note"  #: worth knowing, nothing is broken
    RED = "red"  #: something does not work; the check says what to do


@dataclass(frozen=True)
class Check:
    """One line of the diagnosis.

    Attributes:
        about: what was looked at.
        state: how it ended.
        found: what was found, with the remedy if it is red.
    """

    about: str
    state: State
    found: str


@dataclass(frozen=True)
class Diagnosis:
    """Every check, in the order they were made."""

    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing is red."""
        return all(check.state is not State.RED for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Everything, in types that JSON has."""
        checks = [{**asdict(check), "state": check.state.value} for check in self.checks]
        return {"schema_version": 1, "healthy": self.healthy, "checks": checks}

    def __rich__(self) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        styles = {State.OK: "green", State.NOTE: "cyan", State.RED: "bold red"}
        table = Table(show_header=False, box=None, pad_edge=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for check in self.checks:
            table.add_row(Text(check.state.value, styles[check.state]), check.about, Text(check.found))
        return table


def diagnose() -> Diagnosis:
    """Look at everything; what is broken is red, and does not stop the looking."""
    parts = {
        "versions": _versions,
        "settings": _settings,
        "device": _device,
        "autoload": _autoload,
        "cures": _cures,
        "vendors": _vendors,
    }
    return Diagnosis(tuple(check for about, part in parts.items() for check in _looked_at(about, part)))


def _looked_at(about: str, part: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    try:
        yield from part()
    except FlrouteError as error:
        yield Check(about, State.RED, str(error))


def _versions() -> Iterator[Check]:
    import torch

    from flroute.torch_compat import SUPPORTED, TORCH_VERSION

    yield Check("flroute", State.OK, version("flroute"))
    yield Check("python", State.OK, f"{platform.python_version()} ({sys.executable})")
    supported = f"{TORCH_VERSION.major}.{TORCH_VERSION.minor}" in SUPPORTED
    found = (
        torch.__version__ if supported else f"{torch.__version__}; flroute supports {', '.join(SUPPORTED)}"
    )
    yield Check("torch", State.OK if supported else State.NOTE, found)
    yield Check("numpy", State.OK, version("numpy"))


def _settings() -> Iterator[Check]:
    from flroute.settings import explain_settings

    explained = explain_settings()
    if not explained:
        yield Check("settings", State.OK, "all at their defaults")
    for name, origin in explained.items():
        yield Check(f"setting {name}", State.OK, f"{origin.value} (from {origin.where})")


def _device() -> Iterator[Check]:
    from flroute.device.table import DEVICE_TYPE
    from flroute.torch_compat import device_owner

    owner = device_owner()
    if owner == DEVICE_TYPE:
        yield Check("PrivateUse1", State.OK, f"carries {DEVICE_TYPE!r}")
    elif owner == "privateuseone":
        reason = (
            "FLROUTE_AUTOLOAD=0" if os.environ.get("FLROUTE_AUTOLOAD") else "another accelerator is present"
        )
        yield Check("PrivateUse1", State.NOTE, f"free ({reason}); flroute.enable() registers {DEVICE_TYPE!r}")
    else:
        yield Check(
            "PrivateUse1", State.RED,
            f"held by {owner!r}: PyTorch has one such slot per process. Use flroute in a process that does not "
            f"load {owner!r}; TORCH_DEVICE_BACKEND_AUTOLOAD=0 stops PyTorch from loading it by itself.",
        )  # fmt: skip


_BARE_IMPORT = """
import json, torch, flroute_autoload
failure = flroute_autoload.failure
print(json.dumps({"there": hasattr(torch, "fl"), "failure": failure and f"{type(failure).__name__}: {failure}"}))
"""


def _autoload() -> Iterator[Check]:
    """What a bare ``import torch`` does, seen in a process of its own: in this one flroute came first."""
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        yield Check("autoload", State.NOTE, "switched off by TORCH_DEVICE_BACKEND_AUTOLOAD=0")
        return
    command = [sys.executable, "-c", _BARE_IMPORT]
    done = subprocess.run(  # noqa: S603 -- this very interpreter, and no input
        command, capture_output=True, text=True, check=False, timeout=120
    )
    if done.returncode:
        yield Check("autoload", State.RED, f"`import torch` fails: {done.stderr.strip() or done.returncode}")
        return
    seen = json.loads(done.stdout.splitlines()[-1])
    if seen["failure"]:
        yield Check("autoload", State.RED, f"`import torch` could not load flroute: {seen['failure']}")
    elif seen["there"]:
        yield Check("autoload", State.OK, "a bare `import torch` brings torch.fl")
    else:
        yield Check(
            "autoload", State.NOTE, "a bare `import torch` leaves out torch.fl; flroute.enable() brings it"
        )


def _cures() -> Iterator[Check]:
    """What registering the device changed in this process."""
    from flroute.activation import is_active
    from flroute.device import guard, process_cures

    if not is_active():
        yield Check("cures", State.NOTE, "none yet; they come with the device")
        return
    patched = "patched" if guard.installed() else "not patched: a bare 'fl' in .to('fl') means fl:0"
    yield Check("cure", State.OK if guard.installed() else State.NOTE, f"device guard: {patched}")
    yield Check(
        "cure", State.OK, "module.to('fl') keeps Parameters: else tied weights and optimizers would break"
    )
    yield Check("cure", State.OK, "torch.load(map_location='fl'): else it would end the process")
    for cure in process_cures.CURES:
        yield Check("cure", State.OK, f"{cure.name}: else {cure.why}")


def _vendors() -> Iterator[Check]:
    from flroute import registry
    from flroute.device import table

    loaded = registry.load()
    for vendor in loaded.vendors.values():
        devices = ", ".join(
            f"{device.name} = {device.vendor_device} ({device.facts.name})"
            for device in table.devices()
            if device.vendor == vendor.name
        )
        drivers = "".join(
            f", {kind} {found}"
            for kind, found in (("driver", vendor.driver_version), ("firmware", vendor.firmware_version))
            if found
        )
        yield Check(f"vendor {vendor.name}", State.OK, f"{vendor.version}{drivers}: {devices}")
    if not loaded.vendors:
        yield Check("vendors", State.RED, "none; pip install the package for your chip")
    for problem in loaded.problems:
        yield Check(f"vendor plugin {problem.plugin}", State.RED, str(problem))
    for op in dict.fromkeys(loaded.unknown_ops):
        yield Check("unknown op", State.NOTE, f"{op}: this PyTorch does not have it")
