"""Each kernel is called on arrays, as the router calls it, and compared with PyTorch on the host."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

settings.register_profile("kernels", max_examples=25, deadline=None)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def pytest_configure() -> None:
    settings.load_profile("kernels")
