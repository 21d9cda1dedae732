"""``session.profile()``: what is recorded, what is flagged, and what it costs while nobody asks."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flroute
from flroute.profile import Profile, ProfileRow
from flroute.vendor import Kernel, host_fallback
from support import COPY, Vendors, decisions_of, named, throw_away_vendors

vendors = pytest.fixture(throw_away_vendors)
REFERENCE, OPAQUE = flroute.device("reference"), flroute.device("opaque")


def row_of(profile: Profile, op: str) -> ProfileRow:
    (row,) = [row for row in profile.rows() if row.op == op]
    return row


@pytest.mark.parametrize("device", [REFERENCE, OPAQUE], ids=["reference", "opaque"])
def test_each_route_has_its_rows(device: torch.device) -> None:
    host = torch.rand(5, 5)
    with flroute.enable(device, fallback="allow") as session, session.profile() as profile:
        x = host.to(device)
        for _ in range(20):  # beyond what checks each signature: the hot path is recorded, too
            y = x @ x
        z = torch.hypot(x, y)
        z.sum().item()
    product = row_of(profile, "aten::mm")
    assert (product.route, product.calls, product.nbytes) == ("native", 20, 20 * 3 * 5 * 5 * 4)
    assert product.kernel.startswith(flroute.devices()[device.index].vendor)
    fallback = row_of(profile, "aten::hypot")
    assert (fallback.route, fallback.kernel, fallback.calls) == ("fallback", None, 1)
    (copied,) = [r for r in profile.rows() if r.op == "aten::_copy_from" and r.device == f"cpu->{device}"]
    assert (copied.route, copied.nbytes) == ("copy", 100)
    read = row_of(profile, "aten::_local_scalar_dense")
    assert (read.route, read.device, read.nbytes) == ("copy", f"{device}->cpu", 4)
    assert {row.op for row in profile.rows()}.isdisjoint({"aten::t", "aten::view", "aten::detach"})
    assert all(row.seconds > 0 for row in profile.rows())
    assert profile.seconds == pytest.approx(sum(row.seconds for row in profile.rows()))


def test_calls_are_those_of_the_decisions() -> None:
    net = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Dropout(), torch.nn.Linear(8, 2)
    )
    with flroute.enable("reference", fallback="allow") as session, session.profile() as profile:
        net = net.to(REFERENCE)
        optimizer = torch.optim.AdamW(net.parameters())
        for _ in range(3):
            net(torch.ones(3, 4)).pow(2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    counted: dict[Any, int] = {}
    for d in session.decisions:
        if d.route in ("native", "fallback", "copy"):
            counted[d.op, d.route, d.kernel, d.device] = (
                counted.get((d.op, d.route, d.kernel, d.device), 0) + d.calls
            )
    assert {(r.op, r.route, r.kernel, r.device): r.calls for r in profile.rows()} == counted


def test_results_are_the_same_and_nothing_stays() -> None:
    x = torch.rand(6, 6)
    with flroute.enable("reference") as session:
        expected = torch.softmax(x.to(REFERENCE), 0)
        with session.profile(against_host=True) as profile:
            profiled = torch.softmax(x.to(REFERENCE), 0)
        after = len(profile.records)
        torch.softmax(x.to(REFERENCE), 0)
        assert len(profile.records) == after
        assert session.router.recordings == ()
    assert torch.equal(profiled.cpu(), expected.cpu())


def test_an_error_in_the_block_ends_it() -> None:
    with flroute.enable("reference") as session:
        with pytest.raises(IndexError), session.profile(modules=True) as profile:
            torch.ones(2).exp()[2]
        assert session.router.recordings == ()
        hooks = torch.nn.modules.module
        assert not hooks._global_forward_pre_hooks
        assert not hooks._global_forward_hooks
    assert row_of(profile, "aten::exp").calls == 1


def test_a_closed_session_cannot_be_profiled() -> None:
    with flroute.enable("reference") as session:
        pass
    with pytest.raises(flroute.FlrouteError, match=r"profile\(\) needs an open session"), session.profile():
        pass


def test_two_profiles_at_once_see_the_same() -> None:
    with flroute.enable("reference") as session, session.profile() as outer:
        torch.ones(2).exp()
        with session.profile() as inner:
            torch.ones(2).exp()
        with flroute.enable("reference"):
            torch.ones(2).exp()
    assert (row_of(outer, "aten::exp").calls, row_of(inner, "aten::exp").calls) == (3, 1)


def test_sessions_opened_inside_and_threads_are_recorded() -> None:
    with flroute.enable("reference") as session, session.profile() as profile:
        with flroute.enable("reference:1"):
            torch.ones(2).exp()

        def work() -> None:
            with session.attach():
                torch.ones(2).exp()

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert {(r.device, r.calls) for r in profile.rows() if r.op == "aten::exp"} == {("fl:0", 1), ("fl:1", 1)}
    assert len({r.thread for r in profile.records}) == 2


def test_a_kernel_that_raises_leaves_no_record(vendors: Vendors) -> None:
    def refuses(x: Any) -> Any:
        raise ValueError("broken")

    made = vendors(Kernel("aten::exp", refuses), COPY)
    with (
        flroute.enable(made.device) as session,
        session.profile() as profile,
        pytest.raises(ValueError, match="broken"),
    ):
        torch.ones(2).exp()
    assert "aten::exp" not in {row.op for row in profile.rows()}


def test_host_work_in_a_kernel_has_a_row_of_its_own(vendors: Vendors) -> None:
    def through_host(x: Any) -> Any:
        return host_fallback("aten::erfinv", x)

    made = vendors(Kernel("aten::erfinv", named("through_host", through_host)), COPY)
    with flroute.enable(made.device, fallback="allow") as session, session.profile() as profile:
        torch.zeros(64, device="cpu").to(made.device).erfinv()
    rows = {str(row.route): row for row in profile.rows() if row.op == "aten::erfinv"}
    assert {route: row.calls for route, row in rows.items()} == {"native": 1, "fallback": 1}
    (whole,) = [r for r in profile.records if r.choice.op == "aten::erfinv" and r.choice.route == "native"]
    assert rows["native"].seconds + rows["fallback"].seconds == pytest.approx(whole.nanoseconds / 1e9)


# Against the host -----------------------------------------------------------------------------------------------------------


def _sleeping(x: Any) -> Any:
    time.sleep(0.02)
    return np.exp(x)


def _slow_in_place(x: Any) -> Any:
    time.sleep(0.02)
    return np.sin(x)


def _slow_draw(x: Any, p: Any, train: Any) -> Any:
    time.sleep(0.02)
    return x.copy(), np.ones(x.shape, bool)


def test_what_is_far_slower_than_the_host_is_flagged(vendors: Vendors) -> None:
    kernels = (Kernel("aten::exp", _sleeping), Kernel("aten::sin", _slow_in_place), COPY)
    made = vendors(*kernels, Kernel("aten::native_dropout", _slow_draw))
    with flroute.enable(made.device, fallback="allow") as session:
        x = torch.full((4, 4), 0.5, device="cpu").to(made.device)
        state = torch.get_rng_state()
        with session.profile(against_host=True, slower_than=8) as profile:
            for _ in range(2):
                x.exp()
            x.sin_()
            out = torch.empty(4, 4)
            torch.exp(x, out=out)
            torch.native_dropout(x, 0.5, True)
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x.cpu(), torch.full((4, 4), 0.5).sin())
    slow = {row.op for row in profile.slow}
    assert slow == {"aten::exp", "aten::sin_", "aten::exp.out", "aten::native_dropout"}
    assert row_of(profile, "aten::exp").times_host > 8
    assert "more than 8 times the host's time: " in str(profile)
    assert re.search(r"aten::exp .* slow$", str(profile), re.MULTILINE)


def test_asking_the_host_is_not_accounted_for(vendors: Vendors) -> None:
    def work(**options: Any) -> tuple[Any, Any]:
        with flroute.enable("reference", fallback="allow") as session, session.profile(**options) as profile:
            x = torch.ones(3, 3)
            torch.hypot(x, x @ x)
            x.clone().t().add_(x)
        decisions = {
            (d.op, d.route): (d.calls, d.bytes_to_host, d.bytes_to_device) for d in session.decisions
        }
        return decisions, {(row.op, row.route): (row.calls, row.nbytes) for row in profile.rows()}

    assert work(against_host=True) == work()


@pytest.mark.parametrize("strided", [lambda x: x.expand(3, 4), lambda x: x.as_strided((3, 2), (1, 1))])
def test_beside_the_host_with_arguments_whose_elements_share_memory(
    strided: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """The gradient of a sum is such a tensor: one element, seen many times."""
    with flroute.enable("reference") as session, session.profile(against_host=True) as profile:
        x = strided(torch.arange(4.0))
        y = x * x
    assert torch.equal(y.cpu(), strided(torch.arange(4.0)) ** 2)
    assert row_of(profile, "aten::mul.Tensor").times_host is not None


def test_an_op_that_the_host_lacks_has_no_comparison(vendors: Vendors) -> None:
    def fused_dropout(x: Any, p: Any, generator: Any = None) -> Any:
        return x.copy(), np.ones(x.shape, np.uint8)

    made = vendors(Kernel("aten::_fused_dropout", fused_dropout), COPY)
    with flroute.enable(made.device) as session, session.profile(against_host=True) as profile:
        torch._fused_dropout(torch.ones(3, device="cpu").to(made.device), 0.5)
    row = row_of(profile, "aten::_fused_dropout")
    assert (row.calls, row.times_host, row.is_slow) == (1, None, False)


# Data and traces ----------------------------------------------------------------------------------------------------------


def check_trace(events: list[dict[str, Any]]) -> None:
    """What https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU asks of complete and metadata events."""
    assert events
    for event in events:
        assert event["ph"] in ("X", "M")
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["name"], str)
        assert isinstance(event["ts"], int | float)
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["ts"] >= 0
            assert isinstance(event["cat"], str)
        else:
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
    tracks: dict[Any, list[dict[str, Any]]] = {}
    for event in events:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    for track in tracks.values():  # events of one track lie beside or within each other
        ends: list[float] = []
        for event in sorted(track, key=lambda e: (e["ts"], -e["dur"])):
            while ends and ends[-1] <= event["ts"] + 1e-3:
                ends.pop()
            end = event["ts"] + event["dur"]
            assert not ends or end <= ends[-1] + 1e-3
            ends.append(end)


def test_a_chrome_trace_has_a_track_for_each_device_and_stream(tmp_path: Path) -> None:
    with flroute.enable("reference") as session, session.profile(modules=True) as profile:
        net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        net(torch.ones(1, 2))
        torch.ones(2, device="fl:1").exp()
    written = json.loads(profile.to_chrome_trace(tmp_path / "deep" / "trace.json").read_text())
    events = written["traceEvents"]
    check_trace(events)
    names = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    assert set(names) == {"fl:0 (reference:0)", "fl:1 (reference:1)", "modules"}
    assert [e["args"]["name"] for e in events if e["name"] == "thread_name"] == ["stream 0", "stream 0"]
    (added,) = [e for e in events if e["name"] == "reference/numpy:addmm"]
    assert added["pid"] == names["fl:0 (reference:0)"]
    assert added["args"]["op"] == "aten::addmm"
    assert added["args"]["shapes"] == [[2], [1, 2], [2, 2]]
    assert [e["pid"] for e in events if e.get("args", {}).get("op") == "aten::exp"] == [
        names["fl:1 (reference:1)"]
    ]
    modules = {e["name"]: e for e in events if e.get("cat") == "module"}
    assert set(modules) == {"Sequential", "0", "1"}
    layer = modules["0"]
    assert layer["ts"] <= added["ts"] <= added["ts"] + added["dur"] <= layer["ts"] + layer["dur"]


def test_threads_on_one_stream_have_tracks_of_their_own(tmp_path: Path, vendors: Vendors) -> None:
    made = vendors(Kernel("aten::exp", _sleeping), COPY)
    with flroute.enable(made.device) as session, session.profile() as profile:
        x = torch.zeros(2, device="cpu").to(made.device)
        threads = [threading.Thread(target=x.exp) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    events = json.loads(profile.to_chrome_trace(tmp_path / "trace.json").read_text())["traceEvents"]
    check_trace(events)
    tracks = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert len(tracks) == len(set(tracks)) == len({r.thread for r in profile.records}) >= 3


def test_data_and_tables() -> None:
    with flroute.enable("reference", fallback="allow") as session, session.profile() as profile:
        torch.hypot(torch.ones(2), torch.ones(2))
    data = json.loads(json.dumps(profile.to_dict()))
    assert data["schema_version"] == 1
    (row,) = [r for r in data["rows"] if r["op"] == "aten::hypot"]
    assert (row["route"], row["kernel"], row["calls"], row["times_host"]) == ("fallback", None, 1, None)
    assert re.search(r"aten::hypot\s+fallback", str(profile))
    assert "times host" not in str(profile)
    assert '<tr class="flroute-fallback"><td>aten::hypot</td>' in profile._repr_html_()


def test_an_empty_profile_can_be_shown_and_written(tmp_path: Path) -> None:
    with flroute.enable("reference") as session, session.profile(against_host=True) as profile:
        pass
    assert "0 calls took 0.00 ms" in str(profile)
    assert json.loads(profile.to_chrome_trace(tmp_path / "trace.json").read_text())["traceEvents"] == []
    assert json.loads(profile.to_json(tmp_path / "profile.json").read_text())["rows"] == []


# While nobody asks ------------------------------------------------------------------------------------------------------------


def test_routes_hold_no_trace_of_it_while_nobody_records() -> None:
    """What a route is made of after a profile is what it was made of before: the kernel's own function, on the hot path."""

    def kernel_of(session: flroute.Session) -> Any:
        x = torch.ones(3)
        x.exp()
        x.exp()
        handler = session.router.handler(torch.ops.aten.exp.default)
        names = handler.__code__.co_freevars
        (entries,) = [
            c.cell_contents for c, n in zip(handler.__closure__, names, strict=True) if n == "entries"
        ]
        (entry,) = entries.values()
        return entry.function

    with flroute.enable("reference") as session:
        before = kernel_of(session)
        with session.profile():
            during = kernel_of(session)
        after = kernel_of(session)
    assert after is before
    assert during is not before
    assert during.__wrapped__ is not None
    assert decisions_of(session, "aten::exp")[0].calls == 6
