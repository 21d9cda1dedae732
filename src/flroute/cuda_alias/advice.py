"""What to do about errors that no stand-in can prevent: packages and extensions that are compiled for CUDA."""

from __future__ import annotations

import traceback

_KERNELS = "its kernels are compiled for NVIDIA's devices"
ATTENTION = (
    "use torch.nn.functional.scaled_dot_product_attention (in transformers: attn_implementation='sdpa')"
)
OPTIMIZERS = "use torch.optim, torch.amp and torch.nn.parallel.DistributedDataParallel, which have all of it"

INSTEAD_OF: dict[str, str] = {
    "amp_C": OPTIMIZERS,
    "apex": OPTIMIZERS,
    "bitsandbytes": "load the model unquantized, and use an optimizer of torch.optim",
    "causal_conv1d": "use torch.nn.functional.conv1d with padding on the left",
    "cupy": "use torch or numpy",
    "flash_attn": ATTENTION,
    "mamba_ssm": "use the implementation in PyTorch that transformers has (MambaModel)",
    "nvidia.dali": "use torch.utils.data with torchvision",
    "pycuda": "register a kernel with flroute.vendor.kernel",
    "pynvml": "use torch.cuda.get_device_properties and torch.cuda.mem_get_info, which the device answers",
    "tensorrt": "leave the model in PyTorch",
    "torch_tensorrt": "leave the model in PyTorch",
    "transformer_engine": "use the layers of torch.nn",
    "triton": "the device runs triton kernels if triton is installed: pip install 'flroute[triton]'",
    "xformers": ATTENTION,
}
"""Packages that scripts for cuda import, and what serves in their place."""

_EXTENSIONS = "torch/utils/cpp_extension.py"


def advise(error: BaseException) -> None:
    """Add to an error that leaves a session what there is to do about it, if it is one that we know."""
    note = _about_package(error) if isinstance(error, ImportError) else _about_extension(error)
    if note is not None and hasattr(error, "add_note"):  # Python 3.11 and newer
        error.add_note(note)


def _about_package(error: ImportError) -> str | None:
    name = error.name or ""
    package = next((known for known in INSTEAD_OF if name == known or name.startswith(f"{known}.")), None)
    if package is None:
        return None
    why = "" if package == "triton" else f"{_KERNELS} and cannot run on flroute's; "
    return f"{package} is a package for CUDA: {why}{INSTEAD_OF[package]}"


def _about_extension(error: BaseException) -> str | None:
    if not any(frame.filename.endswith(_EXTENSIONS) for frame in traceback.extract_tb(error.__traceback__)):
        return None
    return (
        f"this builds a CUDA extension: {_KERNELS}. Use the package's implementation in PyTorch if it has one, or register "
        f"what it computes as a kernel: torch.library.custom_op for the host, flroute.vendor.kernel for the device"
    )
