"""What the doctor sees of the process: who holds PyTorch's device slot, and what registering the device changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

from flroute.doctor.checks import Check, State


def device_slot() -> Iterator[Check]:
    """Who holds PrivateUse1."""
    from flroute.device.table import DEVICE_TYPE
    from flroute.torch_compat import device_owner

    owner = device_owner()
    if owner == DEVICE_TYPE:
        yield Check("PrivateUse1", State.GREEN, f"carries {DEVICE_TYPE!r}")
    elif owner == "privateuseone":
        reason = (
            "FLROUTE_AUTOLOAD=0" if os.environ.get("FLROUTE_AUTOLOAD") else "another accelerator is present"
        )
        yield Check(
            "PrivateUse1", State.GREEN, f"free ({reason}); flroute.enable() registers {DEVICE_TYPE!r}"
        )
    else:
        yield Check(
            "PrivateUse1", State.RED, f"held by {owner!r}: PyTorch has one such slot per process",
            f"use flroute in a process that does not load {owner!r}; TORCH_DEVICE_BACKEND_AUTOLOAD=0 stops PyTorch "
            f"from loading it by itself",
        )  # fmt: skip


_BARE_IMPORT = """
import json, torch, flroute_autoload
failure = flroute_autoload.failure
print(json.dumps({"there": hasattr(torch, "fl"), "failure": failure and f"{type(failure).__name__}: {failure}"}))
"""


def autoload() -> Iterator[Check]:
    """What a bare ``import torch`` does, seen in a process of its own: in this one flroute came first."""
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        yield Check(
            "autoload", State.GREEN, "switched off by TORCH_DEVICE_BACKEND_AUTOLOAD=0; import flroute brings torch.fl"
        )  # fmt: skip
        return
    command = [sys.executable, "-c", _BARE_IMPORT]
    done = subprocess.run(  # noqa: S603 -- this very interpreter, and no input
        command, capture_output=True, text=True, check=False, timeout=120
    )
    if done.returncode:
        yield Check(
            "autoload", State.RED, f"`import torch` fails: {done.stderr.strip() or done.returncode}",
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0 leaves out every such package; install the one that fails anew",
        )  # fmt: skip
        return
    seen = json.loads(done.stdout.splitlines()[-1])
    if seen["failure"]:
        yield Check(
            "autoload", State.RED, f"`import torch` could not load flroute: {seen['failure']}",
            "correct what the message names; until then only `import flroute` brings torch.fl",
        )  # fmt: skip
    elif seen["there"]:
        yield Check("autoload", State.GREEN, "a bare `import torch` brings torch.fl")
    else:
        yield Check(
            "autoload", State.GREEN, "a bare `import torch` leaves out torch.fl; flroute.enable() brings it"
        )


def cures() -> Iterator[Check]:
    """What registering the device changed in this process."""
    from flroute.activation import CURES, is_active
    from flroute.device import guard

    if not is_active():
        yield Check("cures", State.GREEN, "none yet; they come with the device")
        return
    if guard.installed():
        yield Check("cure", State.GREEN, "device guard: patched")
    else:
        yield Check(
            "cure", State.YELLOW, "device guard: not patched: a bare 'fl' in .to('fl') means fl:0",
            "name the device's number: .to('fl:1')",
        )  # fmt: skip
    yield Check(
        "cure", State.GREEN, "module.to('fl') keeps Parameters: else tied weights and optimizers would break"
    )
    yield Check("cure", State.GREEN, "torch.load(map_location='fl'): else it would end the process")
    for cure in CURES:
        yield Check("cure", State.GREEN, f"{cure.name}: else {cure.why}")
