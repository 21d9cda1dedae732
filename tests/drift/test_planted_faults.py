"""A planted fault is found by one comparison: the op that has it, and no other."""

from __future__ import annotations

import pytest

import flroute
from planted import FAULTS, Fault, Plant, models, planting

plant = pytest.fixture(planting)

COMPARED = [fault for fault in FAULTS.values() if fault.phase in ("forward", "backward")]


def form(op: str) -> str:
    """An op without overload, in-place mark and namespace."""
    return op.partition("::")[2].partition(".")[0].rstrip("_")


def test_there_are_twenty_and_more() -> None:
    assert len(COMPARED) >= 20
    assert {fault.model for fault in COMPARED} == {"MLP", "ResNet", "transformer"}
    assert {fault.phase for fault in COMPARED} == {"forward", "backward"}


@pytest.mark.parametrize("fault", COMPARED, ids=[fault.name for fault in COMPARED])
def test_the_op_with_the_fault_is_named(plant: Plant, fault: Fault) -> None:
    plant(fault.name)
    model, inputs = models.made(fault.model)
    found = flroute.compare(model, inputs, a="faulty")
    assert not found.passed
    first = found.first_divergence
    assert first is not None
    assert (first.op, str(first.phase)) == (fault.called, fault.phase), str(first)
    assert {form(op.op) for op in found.culprits} == {form(fault.called)}
    worst = found.worst_layer
    assert worst is not None
    assert form(worst.op) == form(fault.called)


@pytest.mark.parametrize("model", models.PROGRAMS)
def test_without_a_fault_nothing_is_named(plant: Plant, model: str) -> None:
    plant()
    found = flroute.compare(*models.made(model), a="faulty")
    assert found.passed, str(found)
