"""Tolerances: every op has one, it grows as errors do, and a vendor may state its own."""

from __future__ import annotations

import fnmatch
from pathlib import Path

import pytest
import torch

from flroute import registry
from flroute.drift import tolerances_page
from flroute.drift.measures import Difference
from flroute.drift.tolerances import Tolerance, class_of, exceeds, op_classes, stated, tolerance_for
from flroute.op_families import FAMILIES
from flroute.torch_compat import all_op_names
from flroute.vendor import DeviceFacts, HostMemory, Vendor, hookimpl

DOCS = Path(__file__).parent.parent.parent / "docs"


def test_every_op_of_this_pytorch_has_a_class() -> None:
    assert {class_of(op).name for op in all_op_names() if op.startswith("aten::")} == set(op_classes())


def test_every_family_has_a_class_and_every_class_is_known() -> None:
    assert set(stated()["families"]) == set(FAMILIES)
    assert {*stated()["families"].values(), *stated()["ops"].values()} <= set(op_classes())


def test_a_pattern_about_ops_is_about_some_op() -> None:
    known = {op.partition("::")[2].partition(".")[0].rstrip("_") for op in all_op_names()}
    for patterns in stated()["ops"]:
        for pattern in patterns.split():
            assert fnmatch.filter(known, pattern), pattern


@pytest.mark.parametrize("op", ["aten::mm", "aten::sum.dim_IntList", "aten::native_layer_norm"])
def test_more_is_allowed_where_more_is_added_up_and_in_coarser_dtypes(op: str) -> None:
    few, many = (tolerance_for(op, torch.float32, n) for n in (2, 2048))
    assert few.atol < many.atol < 1e-3
    assert few.rtol == many.rtol
    assert tolerance_for(op, torch.bfloat16, 2).rtol > 1e3 * few.rtol
    assert tolerance_for(op, torch.bfloat16, 2048).atol == many.atol  # both add up in float32
    assert tolerance_for(op, torch.float64, 2048).atol < 1e-6 * many.atol


def test_in_place_and_list_ops_have_the_class_of_their_plain_form() -> None:
    for op in ("aten::add_.Tensor", "aten::add.out", "aten::_foreach_add_.List"):
        assert class_of(op).name == "arithmetic"


def test_integers_are_exact() -> None:
    assert tolerance_for("aten::mm", torch.int64, 100).is_exact


def test_exceeding_is_relative_to_the_largest_element() -> None:
    allowed = Tolerance(0.0, 1e-3, "")
    assert not exceeds(Difference(max_abs=0.9, scale=1000.0, numel=1), allowed)
    assert exceeds(Difference(max_abs=1.1, scale=1000.0, numel=1), allowed)
    assert not exceeds(Difference(max_abs=1.1, scale=1000.0, numel=1), allowed.times(2))


class Plugin:
    def __init__(self, tolerances: object) -> None:
        self.vendor = Vendor(
            name="coarse",
            version="1",
            devices=(DeviceFacts("One", total_memory=2**20),),
            memory=HostMemory(),
            tolerances=tolerances,  # type: ignore[arg-type]
        )

    @hookimpl
    def flroute_vendors(self) -> list[Vendor]:
        return [self.vendor]


@pytest.fixture
def coarse() -> object:
    stated_by_vendor = {"aten::gelu*": {"bfloat16": (0.5, 0.25)}, "product": {"*": (1e-2, 1e-3)}}
    plugin, known = Plugin(stated_by_vendor), registry.load()
    added = known.add(plugin, "coarse")
    yield
    known.remove(plugin, added)


@pytest.mark.usefixtures("coarse")
def test_a_vendor_states_its_own_by_op_and_by_class() -> None:
    def found(op: str, dtype: torch.dtype) -> Tolerance:
        return tolerance_for(op, dtype, 64, vendor="coarse")

    assert found("aten::gelu", torch.bfloat16) == Tolerance(0.5, 0.25, "coarse: aten::gelu*")
    assert found("aten::mm", torch.float32) == Tolerance(1e-2, 1e-3, "coarse: product")
    assert found("aten::gelu", torch.float32).source == "flroute: transcendental"
    assert tolerance_for("aten::mm", torch.float32, 64, vendor="reference").source == "flroute: product"


@pytest.mark.parametrize(
    "wrong", [{"aten::mm": (1, 2)}, {"aten::mm": {"*": (1.0,)}}, {"aten::mm": {"*": (-1.0, 0.0)}}, 3]
)
def test_what_is_no_tolerance_keeps_the_vendor_out(wrong: object) -> None:
    known = registry.load()
    before = len(known.problems)
    plugin = Plugin(wrong)
    assert known.add(plugin, "coarse") == []
    known.remove(plugin, [])
    assert "tolerances are {op or class: {dtype: (rtol, atol)}}" in str(known.problems.pop())
    assert len(known.problems) == before


def test_the_page_is_what_the_data_say() -> None:
    assert (DOCS / "tolerances.md").read_text(encoding="utf-8") == tolerances_page.to_markdown()
