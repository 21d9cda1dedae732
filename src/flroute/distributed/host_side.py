"""The memory of a device tensor as gloo sees it: the memory itself where the host can, else a copy on the host."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.distributed import ReduceOp

from flroute.device.table import DEVICE_TYPE, device_at
from flroute.device.tensors import host_alias, to_device
from flroute.errors import CollectiveError
from flroute.routing import sparse, transfers

REDUCED_IN: dict[torch.dtype, torch.dtype] = {
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e5m2: torch.float32,
    torch.float8_e4m3fnuz: torch.float32,
    torch.float8_e5m2fnuz: torch.float32,
}
"""What gloo cannot add up, in something wider that it can."""

REDUCED_AS_THEY_ARE = frozenset(
    {
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8,
    }
)  # fmt: skip
"""What gloo can."""

_OF_BOOLS: dict[Any, Any] = {
    ReduceOp.SUM: ReduceOp.MAX,
    ReduceOp.BOR: ReduceOp.MAX,
    ReduceOp.MAX: ReduceOp.MAX,
    ReduceOp.PRODUCT: ReduceOp.MIN,
    ReduceOp.BAND: ReduceOp.MIN,
    ReduceOp.MIN: ReduceOp.MIN,
    ReduceOp.BXOR: ReduceOp.BXOR,
}
"""What a reduction of truth values is, done on bytes of 0 and 1."""


class Reduction(NamedTuple):
    """How gloo is to reduce.

    Attributes:
        dtype: in which the elements go.
        op: what gloo is told.
        divides: whether the sum is divided by the number of ranks afterwards; gloo has no average in every release.
    """

    dtype: torch.dtype
    op: Any
    divides: bool = False


def reduction_for(dtype: torch.dtype, op: Any, title: str) -> Reduction:
    """How gloo reduces elements of a dtype.

    Raises:
        CollectiveError: it cannot.
    """
    if op == ReduceOp.PREMUL_SUM:
        raise CollectiveError(
            f"{title}: PREMUL_SUM is NCCL's own; multiply the tensor by the factor and reduce with SUM"
        )
    if dtype == torch.bool and op in _OF_BOOLS:
        return Reduction(torch.uint8, _OF_BOOLS[op])
    if dtype.is_complex and op not in (ReduceOp.SUM, ReduceOp.AVG):
        raise CollectiveError(f"{title}: complex numbers have no {op.name}; SUM and AVG are there for them")
    carrier = dtype.to_real() if dtype.is_complex else REDUCED_IN.get(dtype, dtype)
    if carrier not in REDUCED_AS_THEY_ARE:
        raise CollectiveError(f"{title}: gloo cannot reduce {dtype}; convert the tensor first")
    average = op == ReduceOp.AVG
    return Reduction(carrier, ReduceOp.SUM if average else op, average)


class HostSide:
    """One tensor of a collective on the host.

    Args:
        tensor: on the device, or on the host already.
        reads: whether the collective reads it.
        reduction: how it is reduced; without one its bytes are moved as they are.

    Attributes:
        flat: one-dimensional, what gloo gets.
        is_copy: whether it is a copy.
    """

    def __init__(self, tensor: torch.Tensor, *, reads: bool, reduction: Reduction | None) -> None:
        self.tensor, self._reduction = tensor, reduction
        dtype = tensor.dtype
        in_place = reduction is None or reduction.dtype.itemsize == dtype.itemsize or dtype.is_complex
        self._reduced_elsewhere = not in_place
        self.is_copy = not (in_place and _host_can_see(tensor))
        if self.is_copy:
            self._host = torch.empty(tensor.shape, dtype=dtype, device="cpu")
            if reads:
                transfers.move(tensor, self._host, transfers.Moved())
        else:
            self._host = host_alias(tensor) if tensor.device.type == DEVICE_TYPE else tensor.detach()
        flat = self._host.as_strided((tensor.numel(),), (1,))  # one element is contiguous with any stride
        if reduction is None:
            self.flat = flat.view(torch.uint8)
        else:
            self.flat = flat.view(reduction.dtype) if in_place else flat.to(reduction.dtype)

    def write_back(self, ranks: int) -> None:
        """Bring what has come to where it belongs.

        Args:
            ranks: by how many an average is divided.
        """
        if self._reduction is not None and self._reduction.divides:
            if self.flat.is_floating_point():
                self.flat.div_(ranks)
            else:
                self.flat.div_(ranks, rounding_mode="trunc")
        if self._reduced_elsewhere:
            self._host.copy_(self.flat.view(self._host.shape))
        if self.is_copy:
            transfers.move(self._host, self.tensor, transfers.Moved())


class SparseSide:
    """One sparse tensor of an all_reduce on the host: gloo adds up the elements that any rank has.

    Args:
        tensor: on the device.
        reduction: how it is reduced.

    Attributes:
        flat: a copy, sparse too.
        is_copy: true.
    """

    is_copy = True

    def __init__(self, tensor: torch.Tensor, reduction: Reduction) -> None:
        self.tensor, self._reduction = tensor, reduction
        self.flat = sparse.with_parts(tensor, [_to_host(part) for part in sparse.parts_of(tensor)])

    def write_back(self, ranks: int) -> None:
        """Bring what has come to where it belongs; see ``HostSide``."""
        total = self.flat.coalesce()
        if self._reduction.divides:
            total = total / ranks
        index = self.tensor.device.index
        sparse.overwrite(
            self.tensor, sparse.with_parts(total, [to_device(part, index) for part in sparse.parts_of(total)])
        )


def check_layouts(op: str, tensors: Iterable[torch.Tensor], reduction: Any, title: str) -> None:
    """Sparse tensors go where gloo takes them.

    Raises:
        CollectiveError: this is not such a place.
    """
    layouts = {tensor.layout for tensor in tensors if sparse.is_sparse(tensor)}
    if not layouts:
        return
    if (
        op != "c10d::allreduce_"
        or layouts != {torch.sparse_coo}
        or reduction not in (ReduceOp.SUM, ReduceOp.AVG)
    ):
        names = ", ".join(sorted(map(str, layouts)))
        raise CollectiveError(
            f"{title}: a tensor of layout {names} can be in no collective but an all_reduce with SUM or AVG of layout "
            f"torch.sparse_coo; convert it first: tensor.to_dense()"
        )


def _to_host(part: torch.Tensor) -> torch.Tensor:
    host = torch.empty(part.shape, dtype=part.dtype, device="cpu")
    transfers.move(part, host, transfers.Moved())
    return host


def _host_can_see(tensor: torch.Tensor) -> bool:
    """Whether gloo can work on the tensor's own memory."""
    if tensor.is_conj() or tensor.is_neg() or not tensor.is_contiguous():
        return False
    if tensor.numel() and not tensor.data_ptr():  # an "efficient zero" owns no memory
        return False
    return tensor.device.type != DEVICE_TYPE or device_at(tensor.device.index).memory.host_visible
