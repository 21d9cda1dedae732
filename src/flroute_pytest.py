"""What pytest loads through the entry-point group ``pytest11``: options, the marker and the fixtures of flroute.

A module of its own, outside the package: pytest imports it in every run, also of projects that only have flroute
installed, and ``import flroute`` imports PyTorch. The package is imported once somebody asks for it: by an option, the
marker or a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

_PLUGIN = "flroute.plugins.pytest_plugin"
_PROPERTY = "flroute_fallbacks"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options; none of them costs anything until it is given."""
    group = parser.getgroup("flroute", "flroute: no silent fallback to the host")
    group.addoption(
        "--flroute-device",
        metavar="DEVICE",
        help="run every test in a session on this device: a vendor, vendor:1 or fl:0",
    )
    group.addoption(
        "--flroute-vendors",
        metavar="A,B",
        type=lambda text: [name.strip() for name in text.split(",") if name.strip()],
        help="run each test that uses flroute_vendor or flroute_session once on each of these devices",
    )
    group.addoption(
        "--flroute-fallback",
        choices=("error", "baseline", "report"),
        help="when the host computed for the device: fail the test, fail it unless the baseline has it, or only report it",
    )
    group.addoption(
        "--flroute-baseline",
        metavar="FILE",
        help="the fallbacks each test may have; implies --flroute-fallback=baseline",
    )
    group.addoption(
        "--flroute-update-baseline",
        action="store_true",
        help="write what the tests that ran fell back on to the baseline",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and wake the plugin if an option asks for it."""
    config.addinivalue_line(
        "markers",
        "flroute(device=None, allow=()): run the test in a session on this device, and fail it if the host computed an op "
        "that `allow` does not name (overloads, ops or globs)",
    )
    options = (
        "flroute_device",
        "flroute_vendors",
        "flroute_fallback",
        "flroute_baseline",
        "flroute_update_baseline",
    )
    if any(config.getoption(name) for name in options):
        _load(config)
    config.pluginmanager.register(_Controller(config), "flroute-controller")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Wake the plugin if a test carries the marker or uses a fixture."""
    fixtures = {"flroute_session", "flroute_vendor"}.intersection(getattr(item, "fixturenames", ()))
    if fixtures or item.get_closest_marker("flroute") is not None:
        _load(item.config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per vendor, where vendors are named."""
    vendors = metafunc.config.getoption("flroute_vendors")
    if vendors and "flroute_vendor" in metafunc.fixturenames:
        metafunc.parametrize("flroute_vendor", vendors, indirect=True)


@pytest.fixture
def flroute_vendor(request: pytest.FixtureRequest) -> str | None:
    """The device the test runs on: each of ``--flroute-vendors`` in turn, else the marker's, else ``--flroute-device``.

    ``None`` where nobody named one: ``flroute.enable(device=None)`` takes the default vendor.
    """
    device: str | None = _load(request.config).device_of(request.node)
    return device


@pytest.fixture
def flroute_session(request: pytest.FixtureRequest, flroute_vendor: str | None) -> Iterator[Any]:
    """The session the test runs in: the one its marker or ``--flroute-device`` opened, else a new one."""
    plugin = _load(request.config)
    with plugin.session_of(request.node, flroute_vendor) as session:
        yield session


class _Controller:
    """Under xdist only the workers see markers: the controller joins in with the first report of a marked test."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Wake the plugin for what a worker's plugin reports."""
        if _PROPERTY in dict(report.user_properties) and not self._config.pluginmanager.has_plugin(_PLUGIN):
            _load(self._config).pytest_runtest_logreport(report)


def _load(config: pytest.Config) -> Any:
    plugin = config.pluginmanager.get_plugin(_PLUGIN)
    if plugin is None:
        from flroute.plugins.pytest_plugin import Plugin

        plugin = Plugin(config)
        config.pluginmanager.register(plugin, _PLUGIN)
    return plugin
