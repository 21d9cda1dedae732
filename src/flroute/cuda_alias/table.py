"""Every attribute of PyTorch's that the alias replaces, and with what."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.cuda.comm  # which import torch leaves out

from flroute.cuda_alias import answers, custom_ops, process_groups, profilers, storages
from flroute.cuda_alias.alias import current
from flroute.cuda_alias.patches import Patch
from flroute.cuda_alias.replacements import (
    accepted,
    answered,
    flag,
    flags_of,
    mirrored,
    of_type,
    refused,
    translated,
)
from flroute.cuda_alias.tensor_types import DTYPES, stand_in
from flroute.device import torch_fl
from flroute.device.torch_fl.absent import why_absent
from flroute.torch_compat import ENGINE_ENTRIES, MEMORY_HISTORY

_CUDA = "torch.cuda"
_PARTS = ("memory", "streams", "random", "graphs")
_NOT_THERE = (
    "torch.cuda.nccl",
    "torch.cuda.comm",
    "torch.cuda.gds",
    "torch.cuda.tunable",
    "torch.cuda.jiterator",
)

_ACCEPTED_AS = f"accepted: {profilers.NO_EFFECT}"
_ACCEPTED = {
    "torch.cuda.nvtx": ("range_push", "range_pop", "mark", "range_start", "range_end"),
    "torch.cuda.profiler": ("start", "stop"),
}

_OF_TYPE = {
    "torch": ("get_autocast_dtype", "set_autocast_dtype"),
    "torch.amp": ("custom_fwd", "custom_bwd", "is_autocast_available"),
    "torch.amp.autocast_mode": ("custom_fwd", "custom_bwd", "is_autocast_available"),
    "torch.amp.autocast_mode.autocast": ("__init__",),
    "torch.utils.data.DataLoader": ("__init__",),
    "torch.distributed": ("init_device_mesh",),
    "torch.distributed.device_mesh": ("init_device_mesh",),
    "torch.distributed.device_mesh.DeviceMesh": ("__init__",),
}  # fmt: skip
"""Arguments that are the type of a device."""


_FLAGS = {
    "torch.backends.cudnn": ("benchmark", "deterministic", "enabled", "allow_tf32"),
    "torch.backends.cuda.matmul": (
        "allow_tf32", "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction",
    ),
}  # fmt: skip


def patches() -> Iterator[Patch]:
    """All of them, for the modules that are imported now."""
    yield from _of_flags()
    yield from _of_torch_cuda()
    for owner, names in _OF_TYPE.items():
        for name in names:
            yield Patch(owner, name, of_type(_named(owner, name)), "the type 'cuda' means the device's")
    yield from _of_devices()
    yield from storages.patches()
    yield from _of_collectives()
    for owner, name in ENGINE_ENTRIES:
        yield Patch(owner, name, answers.hears_of_cuda, "hooks and functions of the user's hear of cuda, too")
    yield Patch(
        "threading.Thread", "start", answers.start_thread, "threads that are started hear of cuda, too"
    )


def _of_torch_cuda() -> Iterator[Patch]:
    for name in sorted(_names(torch.cuda)):
        original = getattr(torch.cuda, name)
        for owner in (_CUDA, *(f"{_CUDA}.{part}" for part in _PARTS)):
            if owner == _CUDA or vars(sys.modules[owner]).get(name) is original:
                yield from _of_name(owner, name)
    for owner in _NOT_THERE:
        part = owner.removeprefix(f"{_CUDA}.")
        for name in sorted(_names(sys.modules.get(owner))):
            why = why_absent(f"{part}.{name}")
            if why is not None and callable(getattr(sys.modules[owner], name)):
                yield Patch(owner, name, refused(f"{owner}.{name}", why), why, refuses=True)
    for owner, names in _ACCEPTED.items():
        for name in names:
            yield Patch(owner, name, accepted(f"{owner}.{name}", profilers.NO_EFFECT), _ACCEPTED_AS)
    for name in MEMORY_HISTORY:
        why = profilers.NO_HISTORY
        yield Patch(f"{_CUDA}.memory", name, refused(f"{_CUDA}.memory.{name}", why), why, refuses=True)


def _of_name(owner: str, name: str) -> Iterator[Patch]:
    said = f"{_CUDA}.{name}"
    if name in DTYPES:
        yield Patch(
            owner, name, lambda _: stand_in(name, current), "makes a tensor of that dtype on the device"
        )
    elif name in answers.OF_CUDA:
        yield Patch(owner, name, answered(said, answers.OF_CUDA[name]), "in terms of cuda's numbers")
    elif name in profilers.OF_CUDA:
        yield Patch(owner, name, answered(said, profilers.OF_CUDA[name]), _ACCEPTED_AS)
    elif name in torch_fl.__all__:
        theirs = getattr(torch_fl, name)
        if callable(theirs):
            yield Patch(owner, name, mirrored(said, theirs), f"`torch.fl.{name}`")
    elif (why := why_absent(name)) is not None and _is_called(getattr(torch.cuda, name)):
        yield Patch(owner, name, refused(said, why), why, refuses=True)


def _of_devices() -> Iterator[Patch]:
    for owner, name, make, meaning in (
        ("torch", "set_default_device", translated("torch.set_default_device"), "the device"),
        ("torch", "get_default_device", answers.default_device, "says cuda"),
        ("torch", "set_default_tensor_type", answers.default_tensor_type, "its dtype, and the device"),
        ("torch", "is_autocast_enabled", answers.of_autocast, "the device's"),
        ("torch", "set_autocast_enabled", answers.of_autocast, "the device's"),
        ("torch", "get_device_module", answers.device_module, "`torch.cuda`"),
        ("torch", "get_autocast_gpu_dtype", answers.autocast_gpu_dtype, "the device's"),
        ("torch", "set_autocast_gpu_dtype", answers.set_autocast_gpu_dtype, "the device's"),
        ("torch", "Generator", answers.generator, "the host's, from which the device draws"),
        ("torch", "compile", answers.compiled, "`fullgraph=True` is not insisted on"),
        ("torch.jit", "script", answers.scripted, "what it is given, as with `PYTORCH_JIT=0`"),
        ("torch.nn.DataParallel", "__init__", answers.data_parallel, "over cuda's devices"),
        ("torch", "load", answers.load, "a number is cuda's"),
        ("torch.serialization", "load", answers.load, "a number is cuda's"),
        ("flroute.device.serialization", "name_of", answers.file_name, "files say cuda"),
        ("flroute.device.serialization", "index_of", answers.file_index, "files that say cuda are read"),
        ("flroute.device.out_of_memory", "opening", answers.full_memory, "begins with `CUDA out of memory`"),
        ("torch.library.Library", "__init__", custom_ops.made, "kernels for cuda are for the device"),
        ("torch.library.Library", "impl", custom_ops.registered, "kernels for cuda are for the device"),
        ("flroute.device.torch_fl.streams.Stream", "device", answers.device_of, "says cuda"),
        ("flroute.device.torch_fl.streams.Event", "device", answers.device_of, "says cuda"),
        ("torch.cuda.amp.common", "amp_definitely_not_available", answers.amp_is_there, "false"),
        ("torch.nn.Module", "to", answers.module_to, "a number is cuda's"),
        ("torch.amp.GradScaler", "__init__", answers.grad_scaler, "for the device"),
        ("torch.random", "fork_rng", answers.fork_rng, "of the devices"),
        ("torch.profiler", "supported_activities", profilers.supported_activities, "says cuda"),
        ("torch.profiler.profile", "__init__", profilers.profile, "ProfilerActivity.CUDA is the device's"),
        ("torch.autograd.profiler.profile", "__init__", profilers.old_profile, "`use_cuda=True` is of the device"),
        ("torch.autograd.profiler.emit_nvtx", "__init__", profilers.emit_nvtx, _ACCEPTED_AS),
        ("torch.nn.utils.rnn.PackedSequence", "is_cuda", answers.packed_is_cuda, "says cuda"),
        ("torch.backends.cuda", "is_built", answered("torch.backends.cuda.is_built", lambda: True), "true"),
        ("torch.accelerator", "current_accelerator", answers.current_accelerator, "says cuda"),
    ):  # fmt: skip
        yield Patch(owner, name, make, meaning)
    for name, answer in answers.OF_ACCELERATOR.items():
        yield Patch(
            "torch.accelerator", name, answered(f"torch.accelerator.{name}", answer), "in terms of cuda"
        )


def _of_flags() -> Iterator[Patch]:
    for owner, names in _FLAGS.items():
        for name in names:
            yield Patch(owner, name, None, "accepted, without effect, and set back at the end")
    for name in _FLAGS["torch.backends.cudnn"]:
        yield Patch("torch.backends.cudnn.CudnnModule", name, flag(f"torch.backends.cudnn.{name}"))
    yield Patch("torch.backends.cuda.cuBLASModule", "__setattr__", flags_of("torch.backends.cuda.matmul"))


def _of_collectives() -> Iterator[Patch]:
    if not torch.distributed.is_available():
        return
    for owner in ("torch.distributed", "torch.distributed.distributed_c10d"):
        for name, make, meaning in (
            ("init_process_group", process_groups.process_group, "`nccl` is the backend `flroute`"),
            ("new_group", process_groups.process_group, "`nccl` is the backend `flroute`"),
            ("get_backend", process_groups.backend, "says `nccl`"),
            ("is_nccl_available", answered("torch.distributed.is_nccl_available", lambda: True), "true"),
        ):
            yield Patch(owner, name, make, meaning)


def _is_called(value: Any) -> bool:
    """An error may be caught by its name, which says nothing."""
    return callable(value) and not (isinstance(value, type) and issubclass(value, BaseException))


def _named(owner: str, name: str) -> str:
    owner = owner.replace(".amp.autocast_mode", "")
    return owner if name == "__init__" else f"{owner}.{name}"


def _names(module: Any) -> list[str]:
    """What it offers: the list it gives, and functions of its own that the list leaves out."""
    own = [
        name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__
    ]
    names = {*getattr(module, "__all__", dir(module)), *own}
    return sorted(name for name in names if not name.startswith("_"))
