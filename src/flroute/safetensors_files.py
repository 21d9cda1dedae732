"""Loading safetensors files onto the device; saving one is ``safetensors.torch.save_file``'s own business."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from flroute import activation
from flroute.device.table import DEVICE_TYPE
from flroute.device_names import resolve_device
from flroute.errors import CheckpointError, FlrouteError


def load_file(
    filename: str | os.PathLike[str], device: str | torch.device = DEVICE_TYPE
) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, on a device.

    ``safetensors.torch.load_file`` knows PyTorch's own devices by name, and ``fl:0`` only by its index. This one takes every
    name that ``flroute.device`` takes. The host holds one tensor of the file at a time.

    Args:
        filename: the file; ``safetensors.torch.save_file`` writes one, of device tensors too.
        device: ``"fl"`` for the current device, ``"fl:1"``, ``"reference:1"``, a ``torch.device``, or ``"cpu"``.

    Raises:
        CheckpointError: the file is truncated, or no safetensors file.
        DeviceError: the device does not exist.
        FlrouteError: safetensors is not installed.

    Example:
        >>> import flroute, tempfile, torch
        >>> from safetensors.torch import save_file
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_file({"weight": torch.ones(2, device="fl")}, f"{folder}/model.safetensors")
        ...     flroute.load_file(f"{folder}/model.safetensors", device="reference:1")["weight"].device
        device(type='fl', index=1)
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError as error:
        raise FlrouteError(
            "flroute.load_file() needs safetensors, which is not installed: pip install safetensors. torch.load(path, "
            "map_location='fl') reads what torch.save wrote."
        ) from error
    target = _target(device)
    try:
        with safe_open(Path(filename), framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name).to(target) for name in file.keys()}  # noqa: SIM118 -- it is no mapping
    except SafetensorError as error:
        raise CheckpointError(
            f"{os.fspath(filename)} cannot be read as a safetensors file: {error}. It may be of another format, or cut off while "
            f"it was written or copied; save or fetch it again"
        ) from error


def _target(device: str | torch.device) -> torch.device:
    name = str(device)
    if name.partition(":")[0] == "cpu":
        return torch.device(name)
    activation.activate()
    return resolve_device(name).torch_device
