"""The device under test; the options are in ``tests/conftest.py``."""

from __future__ import annotations

import pytest

from .target import Target


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Target:
    """The device under test."""
    return Target(request.config.getoption("conformance_device", "reference"))
