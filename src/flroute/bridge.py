"""Where a project computes, with flroute and without it. ``flroute bridge --write`` puts this file into a project."""

import copy
import dataclasses
import importlib.util
from collections.abc import MutableMapping
from typing import Any

import torch
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

flroute = importlib.import_module("flroute") if importlib.util.find_spec("flroute") else None


def resolve_device() -> torch.device:
    """The device to compute on: flroute's (a session's inside one) if it is installed, else cuda, mps or the host."""
    if flroute is not None and flroute.devices():
        return flroute.current_device()  # type: ignore[no-any-return]
    has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    return torch.device("cuda" if has_cuda else "mps" if has_mps else "cpu")


def to_device(obj: Any, device: torch.device | str | None = None) -> Any:
    """``obj`` with every tensor and module in it on the device; containers are copied, and keep their types."""
    device = resolve_device() if device is None else device
    if callable(getattr(obj, "to", None)) and not isinstance(obj, type):  # tensors, modules, batches
        return obj.to(device)
    if isinstance(obj, (list, tuple, set, frozenset)):
        items = [to_device(item, device) for item in obj]
        return type(obj)(*items) if hasattr(obj, "_fields") else type(obj)(items)
    if isinstance(obj, MutableMapping):
        copied = copy.copy(obj)
        MutableMapping.update(copied, {key: to_device(obj[key], device) for key in obj})
        return copied
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        moved = copy.copy(obj)
        for field in dataclasses.fields(obj):
            object.__setattr__(moved, field.name, to_device(getattr(obj, field.name), device))
        return moved
    return obj


def load_model(path: Any, model: torch.nn.Module) -> torch.nn.Module:
    """``model`` on the device, with the weights of a file: a state dict, or a checkpoint that has one."""
    found = torch.load(path, map_location=resolve_device(), weights_only=True)
    state = next((found[key] for key in ("state_dict", "model_state_dict", "model") if key in found), found)
    consume_prefix_in_state_dict_if_present(state, "module.")  # of DistributedDataParallel
    model.load_state_dict(state)
    return model.to(resolve_device())


def autocast(dtype: torch.dtype | None = None) -> torch.autocast:
    """Mixed precision on the device, in ``dtype`` or in what is usual there."""
    return torch.autocast(resolve_device().type, dtype=dtype)


def process_group_backend() -> str:
    """What ``torch.distributed.init_process_group`` takes for the device."""
    return {"fl": "flroute", "cuda": "nccl"}.get(resolve_device().type, "gloo")
