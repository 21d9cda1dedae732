"""Options of the whole suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--conformance-device`` and ``--samples``."""
    group = parser.getgroup("conformance", "PyTorch's own databases on the device")
    group.addoption(
        "--conformance-device",
        default="reference",
        help="vendor or device to test, such as 'opaque' or 'reference:1' (default: reference). "
        "Other vendors than the reference are tested in float32.",
    )
    group.addoption(
        "--samples",
        choices=("third", "all"),
        default="third",
        help="dtypes other than float32: every third sample of each op, or all of them (default: third)",
    )
