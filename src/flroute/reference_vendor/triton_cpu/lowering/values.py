"""The values that a kernel computes with, as the lowering holds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flroute.reference_vendor.triton_cpu.emit import Index
from flroute.reference_vendor.triton_cpu.ttir import Op
from flroute.reference_vendor.triton_cpu.types import Type


@dataclass(frozen=True)
class Affine:
    """``base + sum(coefficients[d] * index[d])`` in 64 bits; the operands are literals or registers."""

    base: str
    coefficients: tuple[str, ...]


@dataclass(eq=False)
class Node:
    """A value: a scalar in a register, a block in scratch memory, or a block that ``at`` evaluates at an index."""

    type: Type
    at: Callable[[Index], str]
    inputs: tuple[tuple[Node, bool], ...] = ()  # what ``at`` pulls, and whether at the same index
    axes: frozenset[int] = frozenset()  # the axes along which the value varies
    affine: Affine | None = (
        None  # of an integer block; of a pointer block: the offset from ``root``, in elements
    )
    root: str = ""  # the scalar pointer that a block of pointers is an offset from
    origin: str = ""  # the kernel's argument that a pointer comes from; empty: it may point anywhere
    compare: tuple[str, Node, Node] | None = None
    both: tuple[Node, Node] | None = None  # the operands of an ``and``
    view: tuple[Node, Callable[[Index], Index], bool] | None = (
        None  # source, index map, whether the last axis stays last
    )
    mask: Node | None = None
    is_load: bool = False
    pointer: Node | None = None
    sinks: frozenset[Op] = frozenset()
    keep: bool = False
    buffer: str = ""
    carried: bool = False
    home: object = None
    constant: str | None = None


def scalar(value_type: Type, register: str) -> Node:
    return Node(value_type, lambda _: register)
