"""Options of the whole suite."""

from __future__ import annotations

import fnmatch
import gc
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

import flroute
import open_gaps
from flroute import registry, routers
from flroute.vendor import Kernel
from support import WithoutKernels

collect_ignore = ["scripts", "host_cuda.py", "run_on_host.py", "drift/bisected_program.py"]
"""Programs that tests run in processes of their own; the search for doctests would import them."""

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")
"""The same examples in every run: a change that breaks nothing fails nothing. ``--hypothesis-profile=default`` looks for new ones."""


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
        choices=("some", "all"),
        default="some",
        help="dtypes other than float32, and other vendors than the reference: every fifth sample of each op, at most 10, "
        "or all of them (default: some)",
    )


def pytest_sessionstart() -> None:
    """Deal the devices out before any test puts another registry in place."""
    flroute.devices()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Strict xfail for what ``open_gaps.py`` declares."""
    opaque = config.getoption("conformance_device") != "reference"
    gaps = {**open_gaps.GAPS, **(open_gaps.ON_OPAQUE if opaque else open_gaps.ON_REFERENCE)}
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        for pattern, reason in gaps.items():
            if fnmatch.fnmatchcase(name, pattern.replace("[", "[[]")):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def pytest_collection_finish() -> None:
    """Take a million objects of PyTorch's databases and of the tests out of each later ``gc.collect()``: 0.65 s become none."""
    gc.freeze()


HOST_ONLY = ("aten::erfinv", "aten::hypot")
"""Ops that fall back in the tests of this folder, whatever the reference vendor can do: one unary, one binary."""


@pytest.fixture
def without_kernels() -> Iterator[WithoutKernels]:
    """Take the reference vendor's kernels of some ops away: what is to be tested is not a vendor but a fallback."""
    gone: set[str] = set()
    candidates = registry.Registry.candidates

    def candidates_left(self: registry.Registry, vendor: str, op: str) -> tuple[Kernel, ...]:
        return () if vendor == "reference" and op in gone else candidates(self, vendor, op)

    def take_away(*ops: str) -> None:
        gone.update(ops)
        routers._forget_routes()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry.Registry, "candidates", candidates_left)
        yield take_away
    routers._forget_routes()


@pytest.fixture(autouse=True)
def _host_only_ops(request: pytest.FixtureRequest) -> None:
    if request.path.parent == Path(__file__).parent:
        request.getfixturevalue("without_kernels")(*HOST_ONLY)
