"""Kinds of tensors that the device does not have, as PyTorch implements them for its own backends, in C++.

Nested tensors of the jagged layout are Python, over two strided tensors, and work like any others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from flroute.device.table import DEVICE_TYPE
from flroute.errors import DeviceError
from flroute.torch_compat import DispatchKey, DispatchKeySet, boxed_redispatch

aten = torch.ops.aten


def refuse_nested(op: str) -> NoReturn:
    """Say what to use instead of a nested tensor of the strided layout.

    Raises:
        DeviceError: in any case.
    """
    raise DeviceError(
        f"{op}: nested tensors of the strided layout live on PyTorch's own backends only, not on {DEVICE_TYPE!r}. Use "
        f"layout=torch.jagged (and, for attention, torch.nested.to_padded_tensor with a mask), or keep it on the host"
    )


def refuse_quantized(op: str) -> NoReturn:
    """Say what to use instead of a quantized tensor.

    Raises:
        DeviceError: in any case.
    """
    raise DeviceError(
        f"{op}: quantized tensors cannot live on {DEVICE_TYPE!r}: PyTorch keeps quantizers on its own backends. Keep the tensor "
        f"on the host, or move it dequantized: tensor.dequantize().to({DEVICE_TYPE!r})"
    )


def _by(refuse: Callable[[str], NoReturn], *ops: str) -> dict[str, Callable[..., Any]]:
    return {op: lambda *_, op=op, **__: refuse(op) for op in ops}


PARTS: dict[str, Callable[..., Any]] = {
    **_by(
        refuse_nested, "aten::_nested_from_padded", "aten::_nested_tensor_from_tensor_list",
        "aten::_nested_view_from_buffer", "aten::_nested_view_from_buffer_copy",
    ),
    **_by(
        refuse_quantized, "aten::_make_per_channel_quantized_tensor", "aten::_make_per_tensor_quantized_tensor",
        "aten::quantize_per_channel", "aten::quantize_per_tensor", "aten::quantize_per_tensor.tensor_qparams",
        "aten::quantize_per_tensor.tensors", "aten::quantize_per_tensor_dynamic",
    ),
}  # fmt: skip
"""By op: what makes such a tensor of device tensors."""

_NESTED_ON_HOST = DispatchKeySet(DispatchKey.NestedTensorCPU)


def _on_host_key(op: Any) -> Callable[..., Any]:
    redispatch = boxed_redispatch(op)
    return lambda *args: redispatch(_NESTED_ON_HOST, *args)


NESTED_METADATA: dict[str, Callable[..., Any]] = {
    name: _on_host_key(getattr(aten, name).default)
    for name in ("_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets")
}
"""``torch.nested.nested_tensor(host_tensors, device="fl")`` asks nobody. What it makes can be asked for its sizes, and nothing
else: autograd asks where an error would end the process."""
