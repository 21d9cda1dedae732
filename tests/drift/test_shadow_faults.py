"""A shadow names the op that is wrong, forward, backward or in the optimizer, and none that is right."""

from __future__ import annotations

import pytest

import flroute
from flroute.drift.shadow.report import ShadowReport
from planted import FAULTS, Fault, Plant, models, planting

plant = pytest.fixture(planting)


def shadowed(model: str, device: object) -> ShadowReport:
    """What a shadow says of three steps of training and an evaluation."""
    made, inputs = models.made(model)
    made.to(device)
    there = {name: tensor.to(device) for name, tensor in inputs.items()}
    with flroute.enable(device="faulty", default_device=False), flroute.shadow(made) as s:
        models.run(model, made, there)
    return s


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_the_op_of_a_fault_is_named(plant: Plant, fault: Fault) -> None:
    found = shadowed(fault.model, plant(fault.name))
    first = found.first_divergence
    assert first is not None, found
    assert first.op == fault.called
    between = (
        first.place.module is None and first.place.phase == "forward"
    )  # gradients are clipped outside of torch.optim
    assert first.place.phase == fault.phase or (between and fault.phase == "optimizer")
    assert {row.op.partition(".")[0].rstrip("_") for row in found.wrong} <= {
        op.partition(".")[0].rstrip("_") for op in (*fault.ops, fault.called)
    }, found
    assert not found.violations
    assert not found.unjudged


@pytest.mark.parametrize("model", models.PROGRAMS)
def test_without_a_fault_none_is_named(plant: Plant, model: str) -> None:
    found = shadowed(model, plant())
    assert found.ok, found
    assert not found.unjudged
