"""What a rank's own arguments must be for a collective to begin: checked before anybody hears of the call.

gloo would say the same in words of its own, once the others wait already; a vendor's kernel need not ask again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Values = Mapping[str, Any]
Check = Callable[[Values, int, int], str | None]
"""Of the arguments by name, how many ranks there are and which this one is: what is wrong, or ``None``."""


def _in_all(count: int) -> str:
    return f"{count} tensor" if count == 1 else f"{count} tensors"


def nothing(_values: Values, _size: int, _rank: int) -> str | None:
    """Any arguments will do."""
    return None


def _one_for_each_rank(name: str, tensors: Sequence[torch.Tensor], size: int) -> str | None:
    if len(tensors) == size:
        return None
    return f"{name} has {_in_all(len(tensors))} for {size} ranks; give one for each"


def _as_large(name: str, tensor: torch.Tensor, wanted: int, of_what: str) -> str | None:
    if tensor.numel() == wanted:
        return None
    return f"{name} has {tensor.numel()} elements {list(tensor.shape)}, and {of_what} {wanted}"


def a_part_from_each(values: Values, size: int, _rank: int) -> str | None:
    """Of ``all_gather``, and of ``gather`` where the others have no outputs: each rank's tensor has a place of its size."""
    for outputs, tensor in zip(values["output_tensors"], values["input_tensors"], strict=False):
        wrong = _one_for_each_rank("the list of outputs", outputs, size)
        for rank, output in enumerate(outputs):
            wrong = wrong or _as_large(f"output {rank}", output, tensor.numel(), "each rank sends")
        if wrong:
            return wrong
    return None


def lists_from_each(values: Values, size: int, _rank: int) -> str | None:
    """Of ``all_gather_coalesced``: a list for each rank, with a place for each of its tensors."""
    lists, tensors = values["output_lists"], values["input_list"]
    if len(lists) != size:
        return f"there are {len(lists)} lists of outputs for {size} ranks; give one for each"
    for outputs in lists:
        if len(outputs) != len(tensors):
            return f"a list of outputs has {_in_all(len(outputs))}, and each rank sends {len(tensors)}"
        for i, (output, tensor) in enumerate(zip(outputs, tensors, strict=True)):
            if wrong := _as_large(f"output {i}", output, tensor.numel(), "each rank sends"):
                return wrong
    return None


def a_part_to_each(values: Values, size: int, rank: int) -> str | None:
    """Of ``reduce_scatter``, and of ``scatter`` where the others have no inputs: a tensor for each rank, of its output's size."""
    for output, inputs in zip(values["output_tensors"], values["input_tensors"], strict=False):
        wrong = _one_for_each_rank("the list of inputs", inputs, size)
        wrong = wrong or _as_large("the output", output, inputs[rank].numel(), f"input {rank} has")
        if wrong:
            return wrong
    return None


def whole_from_parts(whole: str, part: str) -> Check:
    """The argument ``whole`` holds what ``part`` is of every rank; both may be lists, pair by pair."""

    def check(values: Values, size: int, _rank: int) -> str | None:
        wholes, parts = (
            [value] if isinstance(value, torch.Tensor) else value for value in (values[whole], values[part])
        )
        if len(wholes) != len(parts):
            return f"{whole} has {_in_all(len(wholes))} and {part} {len(parts)}; give as many"
        for large, small in zip(wholes, parts, strict=True):
            if wrong := _as_large(whole, large, small.numel() * size, f"{size} ranks with {part} have"):
                return wrong
        return None

    return check


def one_to_each(values: Values, size: int, _rank: int) -> str | None:
    """Of ``all_to_all``: a tensor to and from each rank."""
    return _one_for_each_rank("the list of inputs", values["input_tensors"], size) or _one_for_each_rank(
        "the list of outputs", values["output_tensors"], size
    )


def rows_to_each(values: Values, size: int, _rank: int) -> str | None:
    """Of ``all_to_all_single``: splits that add up to the rows there are, or rows that can be split evenly."""
    for name in ("input", "output"):
        tensor, splits = values[name], values[f"{name}_split_sizes"]
        rows = tensor.size(0) if tensor.dim() else 1
        shown = f"the {name} {list(tensor.shape)}"
        if not splits and rows % size:
            return (
                f"{rows} rows of {shown} cannot be split evenly among {size} ranks; pass {name}_split_sizes"
            )
        if splits and len(splits) != size:
            return f"{name}_split_sizes has {len(splits)} numbers for {size} ranks; give one for each"
        if splits and sum(splits) != rows:
            return f"{name}_split_sizes {list(splits)} add up to {sum(splits)}, and {shown} has {rows} rows"
    return None


_PEERS = {"root_rank": "the root", "dst": "the receiver", "src": "the sender"}


def absent_peer(values: Values, size: int) -> str | None:
    """What is wrong with the rank that the call names, if it names one."""
    for name, who in _PEERS.items():
        if name in values and not 0 <= values[name] < size:
            return f"{who} is rank {values[name]} of a group of {size}, whose ranks are 0 to {size - 1}"
    return None
