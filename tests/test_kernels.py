"""Kernels: what the decorator records, what it refuses, and what is collected from a module."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

from flroute.vendor import Kernel, collect_kernels, kernel
from flroute.vocabulary import Precision


def module_with(**functions: Any) -> ModuleType:
    """A module whose functions were written in it."""
    module = ModuleType("some_kernels")
    for name, function in functions.items():
        function.__module__, function.__name__ = "some_kernels", name
        setattr(module, name, function)
    return module


def test_the_decorator_returns_the_very_function() -> None:
    def negate(x: Any) -> Any:
        return -x

    marked = kernel("aten::neg")(negate)
    assert marked is negate
    assert marked(3) == -3


def test_what_is_said_about_a_kernel_is_kept() -> None:
    def small(x: Any) -> bool:
        return bool(x.numel() < 5)

    @kernel("aten::neg", dtypes=("float32", "bfloat16"), layouts=["contiguous"], when=small, precision="high")
    def negate(x: Any) -> Any:
        return -x

    (found,) = collect_kernels(module_with(negate=negate), implementation="asm")
    assert found == Kernel(
        "aten::neg", negate, "asm", (torch.float32, torch.bfloat16), ("contiguous",), small, Precision.HIGH
    )
    assert found.name == "asm:negate"


def test_defaults_are_any_dtype_any_layout_and_full_precision() -> None:
    @kernel("aten::neg")
    def negate(x: Any) -> Any:
        return -x

    (found,) = collect_kernels(module_with(negate=negate), implementation="asm")
    assert (found.dtypes, found.layouts, found.when, found.precision) == ((), (), None, "highest")


def test_one_function_may_be_the_kernel_of_several_ops() -> None:
    @kernel("aten::neg", dtypes=("float32",))
    @kernel("aten::negative", "aten::positive", precision="medium")
    def negate(x: Any) -> Any:
        return -x

    found = collect_kernels(module_with(negate=negate), implementation="asm")
    assert [(k.op, k.precision, bool(k.dtypes)) for k in found] == [
        ("aten::negative", "medium", False), ("aten::positive", "medium", False), ("aten::neg", "highest", True),
    ]  # fmt: skip


def test_only_a_modules_own_marked_functions_are_collected_in_their_order() -> None:
    @kernel("aten::neg")
    def zebra(x: Any) -> Any: ...
    @kernel("aten::abs")
    def ape(x: Any) -> Any: ...
    @kernel("aten::exp")
    def imported(x: Any) -> Any: ...
    def plain(x: Any) -> Any: ...

    first = module_with(zebra=zebra, plain=plain, ape=ape)
    first.imported = imported  # type: ignore[attr-defined]  # its __module__ is this test's
    first.number = 3  # type: ignore[attr-defined]
    second = module_with(more=kernel("aten::log")(lambda x: x))
    found = collect_kernels(first, second, implementation="asm")
    assert [k.name for k in found] == ["asm:zebra", "asm:ape", "asm:more"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dtypes": ("float31",)}, "no torch.float31"),
        ({"dtypes": ("Tensor",)}, "no torch.Tensor"),
        ({"dtypes": "float32"}, "no torch.f"),
        ({"layouts": ("channels_last",)}, "channels_last"),
        ({"layouts": ("sparse_coo",)}, "flroute_decompositions"),
        ({"precision": "exact"}, "exact"),
        ({"min_numel": -1}, "min_numel=-1"),
    ],
)
def test_an_unknown_word_is_refused_at_once(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        kernel("aten::neg", **arguments)


def test_a_kernel_of_no_op_is_refused() -> None:
    with pytest.raises(ValueError, match="needs the op it computes"):
        kernel()


def test_a_bare_decorator_is_refused() -> None:
    def negate(x: Any) -> Any: ...

    with pytest.raises((TypeError, ValueError), match="kernel"):
        kernel(negate)(lambda x: x)  # type: ignore[arg-type]
