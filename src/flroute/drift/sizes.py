"""How many elements a call adds up for one of its result: an upper estimate, from shapes alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from flroute.drift.tolerances import OpClass


def reduction_size(kind: OpClass, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> int:
    """The largest number of summands that an element of a result may have.

    Args:
        kind: the class of the op.
        inputs: tensors that it reads.
        results: tensors that it makes.

    Example:
        >>> import torch
        >>> from flroute.drift.tolerances import class_of
        >>> a, b = torch.empty(4, 100), torch.empty(100, 8)
        >>> reduction_size(class_of("aten::mm"), [a, b], [a @ b])
        100
        >>> reduction_size(class_of("aten::sum"), [a], [a.sum(1)])
        100
    """
    if kind.growth == "none":
        return 1
    if kind.name in ("product", "attention", "solver"):
        return max((max(t.shape[-2:], default=1) for t in inputs), default=1)
    if kind.name == "convolution":
        return max((_per_channel(t) for t in inputs), default=1)
    largest = max((t.numel() for t in inputs), default=1)
    smallest = min((t.numel() for t in results if t.numel()), default=1)
    scattered = max((t.numel() for t in inputs if not t.is_floating_point()), default=1)
    return max(largest // smallest, scattered if kind.name == "reduction" else 1, 1)


def _per_channel(tensor: torch.Tensor) -> int:
    """Of a weight the elements that one channel reads or writes; of a gradient those that one channel of a weight is made of."""
    channels = min(tensor.shape[:2], default=1)
    return tensor.numel() // max(channels, 1)
