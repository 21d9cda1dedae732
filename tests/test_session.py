"""Sessions: what is in force inside, and that all of it is undone on every exit."""

from __future__ import annotations

import gc
import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)

import flroute
from flroute import routers, routing_mode
from flroute import session as sessions
from support import decision_of, decisions_of

aten = torch.ops.aten
HOST = torch.device("cpu")
FIRST, SECOND = torch.device("fl:0"), torch.device("fl:1")


def state() -> tuple[Any, ...]:
    """Everything a session changes."""
    return (
        list(routers._open), list(routing_mode._thread.modes), _get_current_dispatch_mode_stack(),
        torch.get_default_device(), flroute.current_device(), torch.fl.current_device(), torch.ones(1).device,
    )  # fmt: skip


class Seeing(TorchDispatchMode):
    """A mode of the user's: remembers what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.add(func)
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    before = state()
    yield
    after = state()
    torch.fl.set_device(0)  # one test that fails must not take the others with it
    assert after == before


# -- opening and closing -------------------------------------------------------------------------------------------


def test_a_session_is_in_force_inside_and_only_there() -> None:
    with flroute.enable("reference:1", fallback="error") as session:
        assert isinstance(session, flroute.Session)
        assert torch.ones(1).device == SECOND
        assert torch.get_default_device() == SECOND
        assert flroute.current_device() == SECOND
        assert routers.router_in_force() is session.router
    assert torch.ones(1).device == HOST
    assert routers.router_in_force() is routers.process_router()


def test_making_a_session_opens_nothing() -> None:
    before = state()
    flroute.enable("reference:1")
    assert state() == before


@pytest.mark.parametrize(
    "error", [ValueError, KeyboardInterrupt, GeneratorExit, SystemExit, flroute.FallbackError]
)
def test_an_error_in_the_body_closes_it_and_reaches_the_caller(error: type[BaseException]) -> None:
    before = state()

    def body() -> None:
        torch.ones(1)
        raise error

    session = flroute.enable("reference:1")
    with pytest.raises(error), session:
        body()
    assert state() == before
    assert decisions_of(session, "aten::ones")


@pytest.mark.parametrize("step", ["_current", "RoutingMode", "_listed"])
def test_an_error_while_opening_leaves_nothing_behind(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = state()
    session = flroute.enable("reference:1")

    def fail(*args: Any) -> Any:
        raise MemoryError("no room")

    monkeypatch.setattr(sessions.Session if step == "_listed" else sessions, step, fail)
    with pytest.raises(MemoryError, match="no room"), session:
        raise AssertionError("the body must not run")
    monkeypatch.undo()
    assert state() == before
    with session:
        assert torch.ones(1).device == SECOND, "it can be opened after all"


def test_an_error_while_setting_the_default_device_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = state()
    session = flroute.enable("reference:1")

    class Broken:
        torch_device = None

        def __getattr__(self, name: str) -> Any:
            return getattr(device, name)

    device, session.device = session.device, Broken()  # type: ignore[assignment]
    with pytest.raises((TypeError, AttributeError)), session:
        raise AssertionError("the body must not run")
    assert state() == before


def test_sessions_nest_and_come_back() -> None:
    with flroute.enable("reference:0", fallback="error") as outer:
        torch.relu(torch.ones(1))
        with flroute.enable("reference:1", fallback="allow") as inner:
            assert torch.ones(1).device == SECOND
            torch.relu(torch.ones(1))
            torch.erfinv(torch.zeros(1))
            assert routers.router_in_force() is inner.router
        assert torch.ones(1).device == FIRST
        assert routers.router_in_force() is outer.router
        with pytest.raises(flroute.FallbackError):
            torch.erfinv(torch.zeros(1))
        torch.relu(torch.ones(1))
    assert [(d.device, d.calls) for d in decisions_of(inner, "aten::relu")] == [("fl:1", 1)]
    assert [(d.device, d.calls) for d in decisions_of(outer, "aten::relu")] == [("fl:0", 2), ("fl:1", 1)], (
        "the outer session tells of all that happened inside"
    )


def test_an_inner_session_counts_once_in_the_outer_one() -> None:
    with flroute.enable("reference") as outer:
        for _ in range(3):
            with flroute.enable("reference") as inner:
                torch.relu(torch.ones(1))
                with flroute.enable("reference"):
                    torch.relu(torch.ones(1))
            assert decision_of(inner, "aten::relu").calls == 2
        torch.relu(torch.ones(1))
    assert decision_of(outer, "aten::relu").calls == 7


def test_a_decorated_function_has_a_session_of_its_own_per_call() -> None:
    seen: list[sessions.Session] = []

    @flroute.enable("reference:1", fallback="error")
    def double(x: float, *, depth: int = 0) -> torch.device:
        """Doubles."""
        seen.append(sessions._thread.sessions[-1])
        torch.relu(torch.full((1,), x))
        return double(x, depth=depth - 1) if depth else torch.ones(1).device

    assert double.__name__ == "double"
    assert double.__doc__ == "Doubles."
    assert double(3.0) == double(1.0, depth=2) == SECOND
    assert torch.ones(1).device == HOST
    assert len(set(map(id, seen))) == 4
    assert decision_of(seen[0], "aten::relu").calls == 1


def test_a_decorated_function_that_raises_closes_its_session() -> None:
    @flroute.enable("reference:1")
    def fail() -> None:
        raise ValueError("mine")

    for _ in range(2):
        with pytest.raises(ValueError, match="mine"):
            fail()


def test_an_open_session_cannot_be_opened_again() -> None:
    session = flroute.enable("reference:1")
    with session:
        with pytest.raises(flroute.FlrouteError, match="already open"), session:
            raise AssertionError("the body must not run")
        assert torch.ones(1).device == SECOND, "the attempt changed nothing"


@pytest.mark.parametrize("trace", [False, True], ids=["plain", "trace"])
def test_a_closed_session_can_be_opened_again_and_goes_on_counting(trace: bool, tmp_path: Path) -> None:
    path = str(tmp_path / "trace.jsonl") if trace else None
    session = flroute.enable("reference", trace=path)
    for _ in range(2):
        with session:
            torch.relu(torch.ones(1))
    assert decision_of(session, "aten::relu").calls == 2


def test_closing_twice_does_nothing() -> None:
    session = flroute.enable("reference:1")
    session.__enter__()
    session.__exit__(None, None, None)
    before = state()
    session.__exit__(None, None, None)
    assert state() == before


def test_a_generator_that_is_closed_or_dropped_closes_its_session() -> None:
    def numbers() -> Iterator[torch.device]:
        with flroute.enable("reference:1"):
            while True:
                yield torch.ones(1).device

    before = state()
    generator = numbers()
    assert next(generator) == SECOND
    generator.close()
    assert state() == before
    generator = numbers()
    next(generator)
    del generator
    gc.collect()
    assert state() == before


def test_sessions_closed_out_of_order_leave_nothing_behind() -> None:
    def opened() -> Iterator[None]:
        with flroute.enable("reference:1"):
            yield

    before = state()
    generator = opened()
    next(generator)
    with flroute.enable("reference:0"):
        generator.close()
        torch.relu(torch.ones(1, device="fl"))
    assert state() == before


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
@pytest.mark.parametrize("watched", [False, True], ids=["", "with a mode of the user's"])
def test_the_innermost_open_session_is_in_force_whatever_the_order_of_closing(
    order: tuple[int, ...], watched: bool
) -> None:
    devices = ("reference:1", "opaque:0", "reference:0")
    opened = [flroute.enable(device, fallback="allow") for device in devices]
    before = state()
    with ExitStack() as stack:
        seen = stack.enter_context(Seeing()) if watched else None
        beneath = state()
        for session in opened:
            session.__enter__()
        remaining = list(opened)
        for at in order:
            innermost = remaining[-1]
            calls = sum(d.calls for d in innermost.decisions)
            assert torch.ones(1).device == innermost.device.torch_device
            assert flroute.current_device() == torch.get_default_device() == innermost.device.torch_device
            assert routers.router_in_force() is innermost.router
            assert sum(d.calls for d in innermost.decisions) > calls
            remaining.remove(opened[at])
            opened[at].__exit__(None, None, None)
        assert state() == beneath
        assert seen is None or aten.ones.default in seen.ops
    assert state() == before


@pytest.mark.parametrize("index", [0, 1, None])
def test_a_device_context_closed_within_a_session_that_outlives_it(index: int | None) -> None:
    before = state()
    around, session = torch.fl.device(index), flroute.enable("opaque:0")
    around.__enter__()
    session.__enter__()
    around.__exit__(None, None, None)
    assert flroute.current_device() == session.device.torch_device
    session.__exit__(None, None, None)
    assert state() == before
    with around, around:
        assert torch.fl.current_device() == (index or 0)
    assert state() == before


def test_a_session_closed_while_modes_are_off_routes_no_more() -> None:
    """A generator may be collected at any moment, in the middle of a call, too."""
    session = flroute.enable("reference:1")
    session.__enter__()
    x = torch.ones(1)
    with _disable_current_modes():
        session.__exit__(None, None, None)
    calls = sum(d.calls for d in session.decisions)
    try:
        assert torch.relu(x).tolist() == [1.0]
        assert sum(d.calls for d in session.decisions) == calls
    finally:
        for mode in _get_current_dispatch_mode_stack():  # PyTorch put it back
            torch._C._pop_torch_dispatch_stack(None)
            assert isinstance(mode, sessions.RoutingMode)


def test_a_thread_cannot_attach_once_the_session_is_closed() -> None:
    with flroute.enable("reference:1") as session:
        attached = session.attach()
    with pytest.raises(flroute.FlrouteError, match="open session"), attached:
        raise AssertionError("the body must not run")


def test_an_inner_session_that_outlives_the_one_around_it_tells_the_next_one() -> None:
    with flroute.enable("reference") as outer:
        middle = flroute.enable("reference")
        middle.__enter__()
        with flroute.enable("reference") as inner:
            middle.__exit__(None, None, None)
            torch.relu(torch.ones(1))
    assert [decision_of(s, "aten::relu").calls for s in (outer, inner)] == [1, 1]
    assert not decisions_of(middle, "aten::relu")


def test_a_session_is_closed_in_the_thread_that_opened_it() -> None:
    errors: list[BaseException] = []

    def close() -> None:
        try:
            session.__exit__(None, None, None)
        except flroute.FlrouteError as error:
            errors.append(error)

    with flroute.enable("reference:1") as session:
        thread = threading.Thread(target=close)
        thread.start()
        thread.join()
        assert "MainThread" in str(errors)
        assert "attach()" in str(errors)
        assert torch.ones(1).device == SECOND, "the attempt changed nothing"


def test_a_device_context_inside_a_session_and_a_session_inside_one() -> None:
    with flroute.enable("reference:1"):
        with torch.device("cpu"):
            assert torch.ones(1).device == HOST
        with torch.fl.device(0):
            assert torch.fl.current_device() == 0
        assert torch.ones(1).device == SECOND
        assert torch.fl.current_device() == 1
    with torch.device("fl:1"), flroute.enable("reference:0"):
        assert torch.ones(1).device == FIRST


# -- devices -------------------------------------------------------------------------------------------------------


def test_without_default_device_factories_stay_on_the_host() -> None:
    with flroute.enable("reference:1", default_device=False):
        assert torch.ones(1).device == HOST
        assert torch.ones(1, device="fl").device == SECOND
        assert flroute.current_device() == SECOND


BARE = {
    "to": lambda: torch.ones(1, device="cpu").to("fl"),
    "to device": lambda: torch.ones(1, device="cpu").to(torch.device("fl")),
    "to keyword": lambda: torch.ones(1, device="cpu").to(device="fl", dtype=torch.float64),
    "fl()": lambda: torch.ones(1, device="cpu").fl(),
    "tensor": lambda: torch.tensor([1.0], device="fl"),
    "tensor of int": lambda: torch.tensor(3, device="fl"),
    "as_tensor": lambda: torch.as_tensor([1.0], device="fl"),
    "ones": lambda: torch.ones(1, device="fl"),
    "empty": lambda: torch.empty(1, device="fl"),
    "randn": lambda: torch.randn(1, device="fl"),
    "arange": lambda: torch.arange(3, device="fl"),
    "zeros_like": lambda: torch.zeros_like(torch.ones(1, device="cpu"), device="fl"),
    "new_ones": lambda: torch.ones(1, device="cpu").new_ones(2, device="fl"),
    "from another device": lambda: torch.ones(1, device="fl:0").fl(1),
    "module.to": lambda: torch.nn.Linear(1, 1, device="cpu").to("fl").weight,
    "module.fl": lambda: torch.nn.Linear(1, 1, device="cpu").fl().weight,
    "module device": lambda: torch.nn.Linear(1, 1, device="fl").weight,
    "full": lambda: torch.full((1,), 2.0, device="fl"),
    "tril_indices": lambda: torch.tril_indices(2, 2, device="fl"),
    "cat of scalars": lambda: torch.tensor([[1, 2], [3, 4]], device="fl"),
}


@pytest.mark.parametrize("default_device", [True, False])
@pytest.mark.parametrize("how", BARE)
def test_bare_fl_means_the_sessions_device(how: str, default_device: bool) -> None:
    with flroute.enable("reference:1", fallback="allow", default_device=default_device):
        assert BARE[how]().device == SECOND
    assert torch.ones(1, device="fl").device == FIRST


def test_bare_fl_means_the_current_device_outside() -> None:
    for how in ("to", "tensor", "ones", "module.to", "fl()"):
        with torch.fl.device(1):
            assert BARE[how]().device == SECOND, how
        assert BARE[how]().device == FIRST, how


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("reference", FIRST), ("reference:0", FIRST), ("reference:1", SECOND), ("fl:1", SECOND), ("fl", FIRST),
        (torch.device("fl:1"), SECOND), (torch.device("fl"), FIRST), (None, FIRST), ("opaque:1", torch.device("fl:3")),
    ],
    ids=str,
)  # fmt: skip
def test_the_ways_to_name_a_device(name: Any, expected: torch.device) -> None:
    with flroute.enable(name, fallback="allow") as session:
        assert torch.empty(1).device == expected
        assert session.device.torch_device == expected
    if isinstance(name, str):
        assert flroute.device(name) == expected


def test_a_vendor_nobody_knows_is_answered_with_those_there_are() -> None:
    for ask in (flroute.enable, flroute.device):
        with pytest.raises(flroute.UnknownVendorError) as caught:
            ask("nope")
        for words in ("'nope'", "reference", "opaque", "pip install", "flroute doctor"):
            assert words in str(caught.value)


@pytest.mark.parametrize(
    "name", ["fl:99", "reference:7", "fl:-1", "reference:x", "reference:", "fl:1:2", "fl:"]
)
def test_a_device_that_does_not_exist(name: str) -> None:
    with pytest.raises(flroute.DeviceError, match=name.partition(":")[0]):
        flroute.enable(name)


def test_fl_99_lists_the_devices_there_are() -> None:
    for ask in (
        lambda: flroute.enable("fl:99"),
        lambda: torch.ones(1, device="fl:99"),
        lambda: torch.ones(1).to("fl:99"),
    ):
        with pytest.raises(flroute.DeviceError, match="fl:99") as caught:
            ask()
        assert "fl:1 (reference:1)" in str(caught.value)


@pytest.mark.parametrize("name", ["cpu", "cuda", "Reference", "", " "])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises((flroute.UnknownVendorError, flroute.SettingsError)):
        flroute.enable(name)


# -- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"fallbak": "error"}, ["fallbak", "Did you mean 'fallback'"]),
        ({"fallback": "errror"}, ["errror", "error", "allow"]),
        ({"precision": "exact"}, ["exact", "highest"]),
        ({"default_device": "yes"}, ["default_device", "true or false"]),
        ({"order": {"mm": ["host"]}}, ["order", "aten::mm"]),
        ({"order": {"aten::mm": "host"}}, ["order"]),
        ({"timing": 1}, ["timing"]),
    ],
    ids=str,
)
def test_a_wrong_setting_is_refused(wrong: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(flroute.SettingsError) as caught:
        flroute.enable("reference", **wrong)
    assert all(word in str(caught.value) for word in words)


def test_settings_come_from_the_environment_and_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "flroute.toml").write_text('device = "reference:1"\nfallback = "allow"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLROUTE_FALLBACK", "error")
    with flroute.enable() as session:
        assert torch.ones(1).device == SECOND
        with pytest.raises(flroute.FallbackError):
            torch.erfinv(torch.zeros(1))
    assert session.settings.fallback == "error"
    with flroute.enable("reference:0", fallback="allow"):
        assert torch.erfinv(torch.zeros(1)).device == FIRST
    (tmp_path / "flroute.toml").write_text('\nfallbak = "allow"\n')
    with pytest.raises(flroute.SettingsError, match=r"flroute\.toml:2"):
        flroute.enable()


# -- the report ----------------------------------------------------------------------------------------------------


def test_the_report_has_the_sessions_decisions(tmp_path: Path) -> None:
    with flroute.enable("reference:1", fallback="allow") as session:
        torch.relu(torch.ones(2))
        torch.erfinv(torch.zeros(2))
    report = session.report()
    assert list(report.decisions) == session.decisions
    assert report.device == "fl:1"
    assert [d.op for d in report.fallbacks] == [d.op for d in session.fallbacks] == ["aten::erfinv"]
    assert "aten::erfinv" in str(report)
    read = json.loads(report.to_json(tmp_path / "report.json").read_text())
    assert len(read["decisions"]) == len(session.decisions)
    assert read["settings"]["fallback"] == "allow", "the settings in force are on the record"


def test_decisions_can_be_read_while_the_session_is_open() -> None:
    with flroute.enable("reference") as session:
        assert session.decisions == []
        torch.relu(torch.ones(1))
        assert decision_of(session, "aten::relu").calls == 1
        torch.relu(torch.ones(1))
        assert decision_of(session, "aten::relu").calls == 2
