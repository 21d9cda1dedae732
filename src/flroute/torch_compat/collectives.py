"""The ops of ``torch.distributed``, and what it says of groups and stores to nobody but itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from flroute.torch_compat.ops import all_op_names, has_kernel

OBJECT_COLLECTIVES = (
    frozenset({torch.distributed.distributed_c10d._tensor_to_object.__code__})
    if torch.distributed.is_available()
    else frozenset()
)
"""Where collectives of objects make them again from what another process pickled."""


def collective_ops() -> list[str]:
    """The ops of ``torch.distributed`` that PyTorch sends to out-of-tree devices, ``c10d::allreduce_``."""
    return [name for name in all_op_names() if name.startswith("c10d::") and has_kernel(name, "PrivateUse1")]


def replace_kernel(library: torch.library.Library, name: str, function: Callable[..., Any]) -> None:
    """Put a kernel for out-of-tree devices in the place of PyTorch's own, which it would warn of."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
        library.impl(name.partition("::")[2], function, "PrivateUse1")


def unboxed_group(boxed: Any) -> Any:
    """The ``ProcessGroup`` that a collective op was given."""
    return torch.distributed.ProcessGroup.unbox(boxed)


def reduction_in(boxed: Any) -> Any:
    """Which ``ReduceOp`` a collective op was given: ``ReduceOp.SUM``."""
    return torch.distributed.ReduceOp.RedOpType(boxed.op())


def transport_of(group: Any, device: torch.device) -> Any:
    """The backend that a process group has for a type of device.

    Raises:
        RuntimeError: it has none.
    """
    return group._get_backend(device)


def gather_options() -> Any:
    """What ``all_gather`` can be told."""
    return torch._C._distributed_c10d.AllgatherOptions()


def with_prefix(prefix: str, store: Any) -> Any | None:
    """A store whose keys all begin with ``prefix``, over a connection of its own; ``None``: this kind of store has but one."""
    try:
        own = store.clone()
    except (RuntimeError, NotImplementedError):  # as of one that is written in Python
        return None
    return torch._C._distributed_c10d.PrefixStore(prefix, own)


def is_file_store(store: Any) -> bool:
    """Whether a store, under all its prefixes, is a file."""
    while isinstance(store, torch._C._distributed_c10d.PrefixStore):
        store = store.underlying_store
    return isinstance(store, torch._C._distributed_c10d.FileStore)


def gather_into(transport: Any, output: torch.Tensor, tensor: torch.Tensor, options: Any) -> Any:
    """Start ``all_gather_into_tensor``."""
    return transport._allgather_base(output, tensor, options)


def callback_work() -> type[Any]:
    """The ``Work`` whose ``wait`` is a Python function. C++ keeps the function alive, and hears its errors."""
    return torch._C._distributed_c10d.PythonCallbackWork


def source_rank_of(work: Any) -> int:
    """Whose message a receive from anybody got; ``Work.source_rank`` does the same, and warns that it will go."""
    return int(work._source_rank())
