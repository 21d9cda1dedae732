"""A saved call, made again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from flroute import activation
from flroute.device.table import Device
from flroute.device.tensors import upload
from flroute.device_names import resolve_device
from flroute.drift.host_values import map_values, tensors_of
from flroute.drift.reference import HostReference
from flroute.drift.shadow.ledger import Place
from flroute.drift.shadow.observer import Observer
from flroute.torch_compat import find_op
from flroute.vocabulary import Phase


def replay(path: Path, device: str) -> str:
    """Run a saved call on a device and on the host in float64, and say how far they are apart.

    Args:
        path: of the file that holds the call.
        device: ``"vendor:0"`` or ``"fl:1"``.
    """
    activation.activate()
    target, call = resolve_device(device), torch.load(path, weights_only=True)
    observer = Observer(HostReference(precise=True), lambda: Place(0, None, Phase.FORWARD))
    args = _there(call["args"], target)
    kwargs = {name: _there(value, target) for name, value in call["kwargs"].items()}
    result = observer.call(find_op(call["op"]), args, kwargs)
    row = next(iter(observer.ledger.rows.values()))
    nonfinite = sum(int((~torch.isfinite(t.cpu())).sum()) for t in tensors_of(result))
    lines = [
        f"{call['op']} on {target.vendor_device}",
        f"excess {row.excess:.3g} (beyond 1 is wrong), by {row.tolerance.source if row.tolerance else row.unjudged}",
        f"largest difference {row.local.max_abs:.6g} absolute, {row.local.max_rel:.6g} relative, {row.local.max_ulp:.6g} ulp",
        f"infinite or no numbers: {nonfinite} in the result",
    ]
    return "\n".join(lines)


def _there(value: Any, device: Device) -> Any:
    if isinstance(value, dict):
        return device.torch_device
    if isinstance(value, list | tuple):
        return type(value)(_there(item, device) for item in value)
    return map_values(lambda tensor: upload(device, tensor), value)
