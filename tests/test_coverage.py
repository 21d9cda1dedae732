"""Coverage, and the copy of it in the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import flroute
from flroute.coverage import Coverage, OpCoverage, coverage_of
from flroute.op_families import FAMILIES, family_of
from flroute.vocabulary import OpState

DOCUMENT = Path(__file__).parents[1] / "docs" / "coverage.md"
MAKE = "flroute ops --vendor reference --format markdown > docs/coverage.md"


@pytest.fixture(scope="module")
def reference() -> Coverage:
    return coverage_of("reference")


def test_the_docs_say_what_is(reference: Coverage) -> None:
    written = DOCUMENT.read_text()
    about = re.search(r"PyTorch (\S+) has", written)
    assert about is not None
    if torch.__version__.partition("+")[0] != about[1]:
        pytest.skip(f"the docs are about PyTorch {about[1]}")
    assert written == reference.to_markdown(), f"docs/coverage.md is out of date: {MAKE}"


@pytest.mark.parametrize(
    ("op", "state"),
    [
        ("aten::add.Tensor", OpState.NATIVE),
        ("aten::add_.Tensor", OpState.NATIVE),
        ("aten::empty.memory_format", OpState.NATIVE),
        ("aten::upsample_nearest2d.vec", OpState.COMPOSITE),
        ("aten::linear", OpState.COMPOSITE),
        ("aten::addcmul_", OpState.NATIVE),
        ("aten::new_zeros", OpState.DECOMPOSED),
        ("aten::select.int", OpState.VIEW),
        ("aten::_weight_int8pack_mm", OpState.FALLBACK),
        ("aten::cudnn_convolution", OpState.ABSENT),
    ],
)
def test_states(reference: Coverage, op: str, state: OpState) -> None:
    assert {found.op: found.state for found in reference.ops}[op] is state


def test_a_state_is_what_a_session_sees(reference: Coverage) -> None:
    """No op without a kernel is called native, and the other way round."""
    stated = {found.op: found.state for found in reference.ops}
    with flroute.enable("reference", fallback="allow", default_device=False) as session:
        x = torch.randn(3, 4, device="fl")
        torch.linalg.lstsq(x, x).solution.exp_().add(x.mean()).unsqueeze(0).cumsum(1).new_zeros(3)
        torch.nn.functional.softmax(x @ x.t(), -1)
        torch._convert_indices_from_coo_to_csr(torch.arange(3, device="fl"), 3)
    for decision in session.decisions:
        if decision.route in ("native", "decomposed", "fallback", "view"):
            assert stated[decision.op] == decision.route or stated[decision.op] == "native", decision


def test_shares() -> None:
    states = (OpState.NATIVE, OpState.VIEW, OpState.FALLBACK, OpState.ABSENT, OpState.COMPOSITE)
    some = Coverage("acme", tuple(OpCoverage(f"aten::{s}", "softmax", s) for s in states))
    assert some.served == 0.75
    assert some.summary.startswith("75.0% of the 4 aten ops")
    assert Coverage("acme", ()).served == 1.0


def test_every_family_has_ops(reference: Coverage) -> None:
    assert list(reference.by_family()) == list(FAMILIES)


def test_an_inplace_op_is_in_the_family_of_its_functional_form() -> None:
    for one, other in (("aten::relu_", "aten::relu"), ("aten::__iand__.Tensor", "aten::__and__.Tensor")):
        assert family_of(one) == family_of(other)
