"""``flroute.bisect`` names the ops whose kernels spoil a number, by the number alone."""

from __future__ import annotations

from math import log2

import pytest

import flroute
from flroute.drift.smallest import most_questions
from planted import FAULTS, Fault, Plant, models, planting

plant = pytest.fixture(planting)

TOLERANCE = 5e-6


def bisect_model(model: str, **options: object) -> flroute.Bisection:
    """By the checksum of the logits after training, alone."""

    def checksum() -> float:
        return models.outcome(model, "faulty-device")["checksum"]

    return flroute.bisect(checksum, TOLERANCE, relative=True, progress=False, **options)  # type: ignore[arg-type]


def bisect_planted(plant: Plant, *faults: str) -> flroute.Bisection:
    device = plant(*faults)
    model = FAULTS[faults[0]].model

    def checksum() -> float:
        return models.outcome(model, device)["checksum"]

    return flroute.bisect(
        checksum, TOLERANCE, relative=True, progress=False, device="faulty", default_device=False
    )


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_it_names_a_single_fault_by_the_metric_alone(plant: Plant, fault: Fault) -> None:
    found = bisect_planted(plant, fault.name)
    print(
        f"RUNS {fault.name} {found.suspects} {found.runs} {2 * log2(found.suspects) + 6:.1f} {found.ops} {found.together_with} {found.parts}"
    )
    assert found.ops == (fault.called,)
    assert found.runs <= 2 * log2(found.suspects) + 6
