"""The table of collectives: what each op reads and writes, who must agree on it, and what gloo does for it.

gloo gets one-dimensional tensors on the host: elements where they are reduced, else their bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d

from flroute.distributed import arguments
from flroute.torch_compat import gather_into, gather_options

Works = list[Any]


class Ask(Enum):
    """Whom a rank asks, before the first call of a kind, whether they call the same: those without whom it cannot finish."""

    EVERYONE = "everyone"
    THE_ROOT = "the root"  #: the others ask the root, which may be done before they come
    AS_THE_ROOT = "as the root"  #: the root asks the others, which may be done before it comes
    NOBODY = "nobody"  #: messages between two ranks have no number in the group


@dataclass
class Call:
    """One call of a collective, with host tensors in the place of the device's.

    Attributes:
        values: the arguments by the schema's names.
        transport: gloo.
        size: how many ranks there are.
        rank: which of them this one is.
        reduction: what gloo is told to reduce with.
        row_bytes: bytes in a row of ``alltoall_base_``'s tensors, whose splits count rows.
        afterwards: what is left to do on the host once gloo is done.
    """

    values: dict[str, Any]
    transport: Any
    size: int
    rank: int
    reduction: Any = None
    row_bytes: dict[str, int] = field(default_factory=dict)
    afterwards: list[Callable[[], object]] = field(default_factory=list)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def options(self, kind: Callable[[], Any], **more: Any) -> Any:
        """PyTorch's options object for the call."""
        made = kind()
        made.asyncOp = True
        if self.values.get("timeout", -1) >= 0:
            made.timeout = timedelta(milliseconds=self.values["timeout"])
        if self.reduction is not None:
            made.reduceOp = self.reduction
        for name, value in more.items():
            setattr(made, name, value)
        return made


def _allreduce(call: Call) -> Works:
    return [call.transport.allreduce([t], call.options(c10d.AllreduceOptions)) for t in call["tensors"]]


def _reduce(call: Call) -> Works:
    options = call.options(c10d.ReduceOptions, rootRank=call["root_rank"], rootTensor=call["root_tensor"])
    return [call.transport.reduce(call["tensors"], options)]


def _broadcast(call: Call) -> Works:
    options = call.options(c10d.BroadcastOptions, rootRank=call["root_rank"], rootTensor=call["root_tensor"])
    return [call.transport.broadcast(call["tensors"], options)]


def _allgather(call: Call) -> Works:
    options = call.options(gather_options)
    return [call.transport.allgather(call["output_tensors"], call["input_tensors"], options)]


def _allgather_coalesced(call: Call) -> Works:
    return [
        call.transport.allgather(
            [[outputs[i] for outputs in call["output_lists"]]], [tensor], call.options(gather_options)
        )
        for i, tensor in enumerate(call["input_list"])
    ]


def _allgather_base(call: Call) -> Works:
    options = call.options(gather_options)
    return [gather_into(call.transport, call["output_tensor"], call["input_tensor"], options)]


def _allgather_base_coalesced(call: Call) -> Works:
    return [
        gather_into(call.transport, output, tensor, call.options(gather_options))
        for output, tensor in zip(call["outputs"], call["inputs"], strict=True)
    ]


def _scatter_sum(call: Call, output: torch.Tensor, parts: list[torch.Tensor]) -> Any:
    """gloo's own form is this too, without a future: reduce all, and keep a part."""
    everything = torch.cat(parts)
    mine = everything.split([part.numel() for part in parts])[call.rank]
    call.afterwards.append(lambda: output.copy_(mine))
    return call.transport.allreduce([everything], call.options(c10d.AllreduceOptions))


def _reduce_scatter(call: Call) -> Works:
    return [
        _scatter_sum(call, output, parts)
        for output, parts in zip(call["output_tensors"], call["input_tensors"], strict=True)
    ]


def _reduce_scatter_base(call: Call) -> Works:
    return [_scatter_sum(call, call["output_tensor"], _parts(call, call["input_tensor"]))]


def _reduce_scatter_base_coalesced(call: Call) -> Works:
    return [
        _scatter_sum(call, output, _parts(call, tensor))
        for output, tensor in zip(call["outputs"], call["inputs"], strict=True)
    ]


def _parts(call: Call, tensor: torch.Tensor) -> list[torch.Tensor]:
    return list(tensor.chunk(call.size)) if tensor.numel() else [tensor] * call.size


def _gather(call: Call) -> Works:
    options = call.options(c10d.GatherOptions, rootRank=call["root_rank"])
    return [call.transport.gather(call["output_tensors"], call["input_tensors"], options)]


def _gather_base(call: Call) -> Works:
    """Only the root has an output; gloo itself has no form for one tensor."""
    outputs = [_parts(call, call["output_tensor"])] if call.rank == call["root_rank"] else []
    options = call.options(c10d.GatherOptions, rootRank=call["root_rank"])
    return [call.transport.gather(outputs, [call["input_tensor"]], options)]


def _scatter(call: Call) -> Works:
    options = call.options(c10d.ScatterOptions, rootRank=call["root_rank"])
    return [call.transport.scatter(call["output_tensors"], call["input_tensors"], options)]


def _alltoall(call: Call) -> Works:
    """gloo's form for lists is younger than PyTorch 2.11; the one for a single tensor has always been there."""
    outputs, inputs = call["output_tensors"], call["input_tensors"]
    sizes, sent = ([part.numel() for part in parts] for parts in (outputs, inputs))
    received = torch.cat(outputs)
    for output, part in zip(outputs, received.split(sizes), strict=True):
        call.afterwards.append(partial(output.copy_, part))
    options = call.options(c10d.AllToAllOptions)
    return [call.transport.alltoall_base(received, torch.cat(inputs), sizes, sent, options)]


def _alltoall_base(call: Call) -> Works:
    splits = [
        [rows * call.row_bytes[side] for rows in call[f"{side}_split_sizes"]] for side in ("output", "input")
    ]
    return [
        call.transport.alltoall_base(
            call["output"], call["input"], *splits, call.options(c10d.AllToAllOptions)
        )
    ]


def _barrier(call: Call) -> Works:
    return [call.transport.barrier(call.options(c10d.BarrierOptions))]


def _send(call: Call) -> Works:
    return [call.transport.send(call["tensors"], call["dst"], call["tag"])]


def _receive(call: Call) -> Works:
    return [call.transport.recv(call["tensors"], call["src"], call["tag"])]


def _receive_from_anybody(call: Call) -> Works:
    return [call.transport.recv_anysource(call["tensors"], call["tag"])]


@dataclass(frozen=True)
class Collective:
    """One of PyTorch's collectives.

    Attributes:
        name: of the op, without ``c10d::``.
        function: what people call, in ``torch.distributed``.
        reads: arguments whose tensors are read.
        writes: arguments whose tensors are written.
        start: has gloo begin.
        ask: whom to ask whether they call the same.
        same_size: whether all ranks must pass tensors of one size.
        sized_by: the argument that shows it, if not what is read.
        check: what this rank's own arguments must be.
        note: how gloo does it, for the docs.
    """

    name: str
    function: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    start: Callable[[Call], Works]
    ask: Ask = Ask.EVERYONE
    same_size: bool = True
    sized_by: tuple[str, ...] = ()
    check: arguments.Check = arguments.nothing
    note: str = "gloo"

    @property
    def op(self) -> str:
        """``c10d::allreduce_``."""
        return f"c10d::{self.name}"


_TENSORS, _OUT, _IN = ("tensors",), ("output_tensors",), ("input_tensors",)
_OUT_1, _IN_1, _OUTS, _INS = ("output_tensor",), ("input_tensor",), ("outputs",), ("inputs",)

_ONE_BY_ONE = "gloo, tensor by tensor"
_AS_ONE = "gloo, as one tensor"
_KEEPS_A_PART = "gloo, as an all_reduce of which each rank keeps its part"

COLLECTIVES: dict[str, Collective] = {
    collective.op: collective
    for collective in (
        Collective("allreduce_", "all_reduce", _TENSORS, _TENSORS, _allreduce),
        Collective("allreduce_coalesced_", "all_reduce_coalesced", _TENSORS, _TENSORS, _allreduce, note=_ONE_BY_ONE),
        Collective("reduce_", "reduce", _TENSORS, _TENSORS, _reduce, Ask.AS_THE_ROOT),
        Collective("broadcast_", "broadcast", _TENSORS, _TENSORS, _broadcast, Ask.THE_ROOT),
        Collective("allgather_", "all_gather", _IN, _OUT, _allgather, check=arguments.a_part_from_each),
        Collective(
            "allgather_coalesced_", "all_gather_coalesced", ("input_list",), ("output_lists",), _allgather_coalesced,
            check=arguments.lists_from_each, note=_ONE_BY_ONE,
        ),
        Collective(
            "_allgather_base_", "all_gather_into_tensor", _IN_1, _OUT_1, _allgather_base,
            check=arguments.whole_from_parts("output_tensor", "input_tensor"),
        ),
        Collective(
            "allgather_into_tensor_coalesced_", "all_gather_into_tensor, coalesced", _INS, _OUTS, _allgather_base_coalesced,
            check=arguments.whole_from_parts("outputs", "inputs"), note=_ONE_BY_ONE,
        ),
        Collective(
            "reduce_scatter_", "reduce_scatter", _IN, _OUT, _reduce_scatter,
            check=arguments.a_part_to_each, note=_KEEPS_A_PART,
        ),
        Collective(
            "_reduce_scatter_base_", "reduce_scatter_tensor", _IN_1, _OUT_1, _reduce_scatter_base,
            check=arguments.whole_from_parts("input_tensor", "output_tensor"), note=_KEEPS_A_PART,
        ),
        Collective(
            "reduce_scatter_tensor_coalesced_", "reduce_scatter_tensor, coalesced", _INS, _OUTS, _reduce_scatter_base_coalesced,
            check=arguments.whole_from_parts("inputs", "outputs"), note=_KEEPS_A_PART,
        ),
        Collective("gather_", "gather", _IN, _OUT, _gather, Ask.AS_THE_ROOT, check=arguments.a_part_from_each),
        Collective(
            "gather_into_tensor_", "gather_single", _IN_1, _OUT_1, _gather_base, Ask.AS_THE_ROOT,
            note="gloo; PyTorch has it since 2.14",
        ),
        Collective(
            "scatter_", "scatter", _IN, _OUT, _scatter, Ask.THE_ROOT, sized_by=_OUT, check=arguments.a_part_to_each
        ),
        Collective(
            "alltoall_", "all_to_all", _IN, _OUT, _alltoall, same_size=False, check=arguments.one_to_each, note=_AS_ONE
        ),
        Collective(
            "alltoall_base_", "all_to_all_single", ("input",), ("output",), _alltoall_base, same_size=False,
            check=arguments.rows_to_each,
        ),
        Collective("barrier", "barrier", (), (), _barrier),
        Collective("send", "send, isend", _TENSORS, (), _send, Ask.NOBODY),
        Collective("recv_", "recv, irecv", (), _TENSORS, _receive, Ask.NOBODY),
        Collective("recv_any_source_", "recv, irecv from any rank", (), _TENSORS, _receive_from_anybody, Ask.NOBODY),
    )
}  # fmt: skip
"""By the op's name."""


def map_nested(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """``value`` with each tensor in it, in lists of lists too, replaced."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, list | tuple):
        return [map_nested(function, item) for item in value]
    return value


def tensors_within(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in an argument, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_within(item)
