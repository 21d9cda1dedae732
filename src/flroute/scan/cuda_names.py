"""What becomes of each name of ``torch.cuda`` in device-neutral code, and which libraries are CUDA's alone.

Whether the device has a name is not said here: ``flroute.device.torch_fl`` knows, and gives the reason where it has not. Nor is
it said here what `flroute run` redirects: ``flroute.cuda_alias`` has the table.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache

from flroute.cuda_alias.table import patches
from flroute.device.torch_fl.absent import plain_name, why_absent
from flroute.scan.findings import Kind, Need

ACCELERATOR = {
    "is_available": "is_available",
    "device_count": "device_count",
    "current_device": "current_device_index",
    "empty_cache": "empty_cache",
    "memory_allocated": "memory_allocated",
    "max_memory_allocated": "max_memory_allocated",
    "memory_reserved": "memory_reserved",
    "max_memory_reserved": "max_memory_reserved",
    "memory_stats": "memory_stats",
    "reset_peak_memory_stats": "reset_peak_memory_stats",
    "reset_accumulated_memory_stats": "reset_accumulated_memory_stats",
}
"""Names of ``torch.cuda`` that ``torch.accelerator`` has, too, and what they are called there. Not its streams, which are of
another class than those that ``torch.cuda.Stream()`` makes; nor what ``torch.cpu`` has, too, for that runs on a bare host."""

ERRORS = ("AcceleratorError", "OutOfMemoryError")
"""Errors that ``torch.cuda`` has under a second name: ``torch`` has them on every host, ``torch.cpu`` has not."""

AMP = {
    "torch.cuda.amp.autocast": "{torch}.autocast",
    "torch.cuda.amp.autocast_mode.autocast": "{torch}.autocast",
    "torch.cuda.amp.GradScaler": "{torch}.amp.GradScaler",
    "torch.cuda.amp.grad_scaler.GradScaler": "{torch}.amp.GradScaler",
    "torch.cuda.amp.custom_fwd": "{torch}.amp.custom_fwd",
    "torch.cuda.amp.custom_bwd": "{torch}.amp.custom_bwd",
}
"""Mixed precision of one device, and the same of any."""

AUTOCAST_PARAMETERS = ("enabled", "dtype", "cache_enabled")
"""Of ``torch.cuda.amp.autocast``, by position; ``torch.autocast`` has another order."""

SEEDS = tuple(
    f"torch.cuda.{part}{name}" for part in ("", "random.") for name in ("manual_seed", "manual_seed_all")
)

PROFILER_COLUMNS = (
    "cuda_time", "cuda_time_total", "self_cuda_time_total", "cuda_time_str", "cuda_time_total_str", "cuda_memory_usage",
    "self_cuda_memory_usage",
)  # fmt: skip
"""Of a profiler's events; each has a name with ``device`` in the place of ``cuda``."""

ENVIRONMENT = ("CUDA_*", "PYTORCH_CUDA_*", "NCCL_*", "CUBLAS_*", "CUDNN_*", "TORCH_CUDA_*", "TORCH_NCCL_*")
"""Variables that CUDA's libraries read."""

_BLOCKING = (
    "CUDAGraph", "graph", "graphs*", "graph_pool_handle", "make_graphed_callables", "jiterator*",
    "current_*_handle", "CUDAPluggableAllocator", "change_current_allocator", "MemPool", "use_mem_pool", "caching_allocator_*",
    "ExternalStream", "get_stream_from_external", "nccl*", "comm*", "gds*", "green_contexts*", "GreenContext", "tunable*",
)  # fmt: skip
"""Names that cannot be left out: what they do has to be done in another way."""

HOST_TYPES = tuple(
    f"torch.cuda.{name}Tensor"
    for name in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
)
"""Types whose namesakes in ``torch`` make the same tensor on the host."""

LIBRARIES = {
    "apex": "torch.optim, torch.nn.LayerNorm and torch.autocast have what it is used for",
    "bitsandbytes": "torchao quantizes with kernels of any device",
    "causal_conv1d": "torch.nn.functional.conv1d with groups does the same",
    "cupy": "NumPy's own functions on x.cpu().numpy(), or torch's on the device",
    "cuda": "it drives the CUDA runtime itself",
    "flash_attn": "torch.nn.functional.scaled_dot_product_attention takes the device's own kernel",
    "flashinfer": "torch.nn.functional.scaled_dot_product_attention takes the device's own kernel",
    "mamba_ssm": "transformers has these layers in plain PyTorch",
    "numba.cuda": "write the kernel for the vendor: flroute.vendor.kernel",
    "nvidia.dali": "torchvision.transforms.v2 on the device",
    "pycuda": "write the kernel for the vendor: flroute.vendor.kernel",
    "spconv": "write the kernel for the vendor: flroute.vendor.kernel",
    "tensorrt": "torch.compile",
    "tinycudann": "the same layers in plain PyTorch",
    "torch_tensorrt": "torch.compile",
    "transformer_engine": "torch.nn's layers and torch.autocast",
    "triton": "register the kernel with flroute.vendor.kernel, whose vendor says how Triton runs on it",
    "xformers": "torch.nn.functional.scaled_dot_product_attention takes the device's own kernel",
}
"""Packages that compute on CUDA and nowhere else, and what to use instead."""

_ACCELERATE = "set ACCELERATE_TORCH_DEVICE to the device: accelerate knows those of PyTorch itself"
_LIGHTNING = "pass strategy=flroute.plugins.lightning.strategy(device)"

CHOOSING = {
    "accelerate.Accelerator": _ACCELERATE,
    "transformers.Trainer": _ACCELERATE,
    "transformers.Seq2SeqTrainer": _ACCELERATE,
    "lightning.Trainer": _LIGHTNING,
    "lightning.pytorch.Trainer": _LIGHTNING,
    "pytorch_lightning.Trainer": _LIGHTNING,
}
"""What chooses its device itself, and how it is told one."""

EXTENSIONS = ("CUDAExtension", "load_inline", "load")
"""What of ``torch.utils.cpp_extension`` may compile CUDA sources."""


def library_of(module: str) -> str | None:
    """The CUDA-only package that a module belongs to."""
    return next((name for name in LIBRARIES if module == name or module.startswith(name + ".")), None)


def is_environment(name: str) -> bool:
    """Whether a variable is one that CUDA's libraries read."""
    return any(fnmatchcase(name, pattern) for pattern in ENVIRONMENT)


@cache
def redirected() -> frozenset[str]:
    """The names that `flroute run` gives a meaning: those of the alias's own table that it does not refuse."""
    names = {f"{patch.owner}.{patch.name}": patch.meaning for patch in patches()}
    return frozenset(
        name for name, meaning in names.items() if meaning != why_absent(name.removeprefix("torch.cuda."))
    )


def refusal(name: str) -> tuple[Kind, Need, str] | None:
    """For a name of ``torch.cuda`` that the device has not: its kind, who must act, and what to do."""
    reason = why_absent(name)
    if reason is None:
        return None
    plain = plain_name(name)
    if plain.endswith(("Tensor", "Storage")):
        return Kind.TENSOR_TYPE, Need.HAND, "say dtype= and device=DEVICE"
    blocked = any(fnmatchcase(plain, pattern) for pattern in _BLOCKING)
    return Kind.CUDA_ONLY, Need.BLOCKED if blocked else Need.HAND, reason
