"""One call of an op as a script: inputs in a file beside it, to be run again on any device."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from flroute.device_names import resolve_device
from flroute.drift.host_values import map_values

_SCRIPT = '''"""{op}, on the inputs it had when it went wrong: python {name}.py [device]"""

import sys
from pathlib import Path

from flroute.drift.shadow.replay_op import replay

print(replay(Path(__file__).with_suffix(".pt"), sys.argv[1] if len(sys.argv) > 1 else {device!r}))
'''


class Saver:
    """Writes calls into a folder, which is made if it is missing."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._saved = 0

    def save(self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device) -> str:
        """Write a call whose tensors are on the host; returns the path of the script."""
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"{self._saved}_{op.partition('::')[2].replace('.', '_')}"
        self._saved += 1
        torch.save(
            {"op": op, "args": _plain(args), "kwargs": {k: _plain(v) for k, v in kwargs.items()}},
            self.folder / f"{name}.pt",
        )
        script = self.folder / f"{name}.py"
        vendor_device = resolve_device(str(device)).vendor_device
        script.write_text(_SCRIPT.format(op=op, name=name, device=vendor_device), encoding="utf-8")
        return str(script)


def _plain(value: Any) -> Any:
    """What ``torch.load`` reads without trusting the file: devices by name, no generators, tensors with no more than they show."""
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, torch.Generator):
        return None
    if isinstance(value, list | tuple):
        return type(value)(_plain(item) for item in value)
    return map_values(lambda tensor: tensor.detach().clone(), value)
