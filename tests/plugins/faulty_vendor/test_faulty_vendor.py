"""Every fault shows in its model, and only when it is planted."""

from __future__ import annotations

import pytest
import torch

import flroute
from planted import FAULTS, Fault, Plant, models, planting

plant = pytest.fixture(planting)

TOLERANCE = 5e-6


@pytest.fixture(scope="module")
def host() -> dict[str, dict[str, float]]:
    return {name: models.outcome(name) for name in models.PROGRAMS}


def drift(found: dict[str, float], right: dict[str, float]) -> float:
    return abs(found["checksum"] - right["checksum"]) / abs(right["checksum"])


def outcome_on(device: torch.device, model: str) -> tuple[dict[str, float], flroute.Session]:
    with flroute.enable(device="faulty", fallback="error", default_device=False) as session:
        return models.outcome(model, device), session


@pytest.mark.parametrize("model", models.PROGRAMS)
def test_without_a_fault_it_is_the_reference_vendor(
    plant: Plant, host: dict[str, dict[str, float]], model: str
) -> None:
    found, _ = outcome_on(plant(), model)
    assert drift(found, host[model]) < TOLERANCE / 4


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_moves_the_numbers_of_its_model(
    plant: Plant, host: dict[str, dict[str, float]], fault: Fault
) -> None:
    found, session = outcome_on(plant(fault.name), fault.model)
    assert any(d.op == fault.called and d.route in ("native", "copy") for d in session.decisions)
    assert drift(found, host[fault.model]) > 2 * TOLERANCE


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_the_host_in_place_of_the_kernel_is_right(
    plant: Plant, host: dict[str, dict[str, float]], fault: Fault
) -> None:
    device = plant(fault.name)
    with flroute.enable(
        device="faulty", fallback="allow", default_device=False, order={op: ["host"] for op in fault.ops}
    ):
        found = models.outcome(fault.model, device)
    assert drift(found, host[fault.model]) < TOLERANCE


def test_faults_are_of_every_kind() -> None:
    assert len(FAULTS) >= 20
    assert {fault.model for fault in FAULTS.values()} == set(models.PROGRAMS)
    assert {fault.phase for fault in FAULTS.values()} == {"forward", "backward", "optimizer"}
