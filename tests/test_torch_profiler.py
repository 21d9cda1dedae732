"""``torch.profiler`` over the device: kernels by name, their time, calls and bytes, in tables and in Chrome traces."""

from __future__ import annotations

import gzip
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function, schedule

import flroute
from flroute import routers
from flroute.routing import recording
from flroute.vendor import Kernel, host_fallback
from support import COPY, Vendors, named, throw_away_vendors

vendors = pytest.fixture(throw_away_vendors)

DEVICES = [flroute.device("reference"), flroute.device("opaque")]
WHERE = ["outside", "session"]


def names(found: Any, kind: DeviceType = DeviceType.PrivateUse1) -> list[str]:
    return [event.name for event in found.events() if event.device_type == kind]


def averages(found: Any) -> dict[str, Any]:
    return {row.key: row for row in found.key_averages()}


@pytest.fixture(autouse=True)
def _nothing_stays() -> Any:
    yield
    assert recording._open == []
    assert routers.process_router().recordings == ()
    assert not torch.nn.modules.module._global_forward_pre_hooks


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("device", DEVICES, ids=["reference", "opaque"])
def test_kernels_have_rows_with_time_and_calls(device: torch.device, where: str) -> None:
    x = torch.ones(8, 8, device=device)
    with flroute.enable(device) if where == "session" else record_function("alone"), profile() as found:
        for _ in range(3):
            x @ x
    rows = averages(found)
    vendor = flroute.devices()[device.index].vendor
    (kernel,) = [row for name, row in rows.items() if name.startswith(f"{vendor}/")]
    op = rows["aten::mm"]
    assert kernel.count == 3
    assert kernel.self_device_time_total > 0
    assert op.self_device_time_total == pytest.approx(kernel.self_device_time_total)
    assert rows["aten::matmul"].device_time_total == pytest.approx(op.device_time_total)
    assert rows["aten::matmul"].self_device_time_total == 0
    table = found.key_averages().table(sort_by="self_fl_time_total")
    assert "Self FL" in table
    assert "FL total" in table
    assert kernel.key in table
    assert op.self_fl_time_total == op.self_device_time_total


def test_a_table_is_sorted_by_the_devices_time() -> None:
    small, large = torch.ones(2, 2, device="fl"), torch.ones(300, 300, device="fl")
    (small @ small).exp(), (large @ large).exp()
    with profile() as found:
        small.exp()
        large @ large
    lines = found.key_averages().table(sort_by="self_fl_time_total", max_name_column_width=80).splitlines()
    order = [line.split()[0] for line in lines if line.strip().startswith("reference/")]
    times = {row.key: row.self_device_time_total for row in found.key_averages()}
    assert order == sorted(order, key=lambda name: -times[name])
    assert {name.rpartition(":")[2] for name in order} == {"mm", "exp"}


def test_copies_and_fallbacks_are_rows_too() -> None:
    with flroute.enable("reference", fallback="allow"), profile() as found:
        x = torch.ones(4, device="cpu").to("fl")
        torch.hypot(x, x).sum().item()
    assert {"fl/device:copy", "host:aten::hypot", "fl/device:read_scalar"} <= set(names(found))


def test_what_a_kernel_has_the_host_do_is_part_of_its_time(tmp_path: Path, vendors: Vendors) -> None:
    def through_host(x: Any) -> Any:
        return host_fallback("aten::erfinv", x)

    x = vendors(Kernel("aten::erfinv", named("through_host", through_host)), COPY).put(torch.zeros(3))
    with profile() as found:
        x.erfinv()
    (row,) = names(found)
    assert row.endswith(":through_host")
    found.export_chrome_trace(str(tmp_path / "trace.json"))
    assert [e["args"]["route"] for e in device_rows(tmp_path / "trace.json")] == ["native", "fallback"]


def test_the_bytes_of_results() -> None:
    x = torch.ones(16, 16, device="fl")
    with profile(profile_memory=True) as found:
        torch.relu(x @ x)
    rows = averages(found)
    assert rows["aten::mm"].self_device_memory_usage == 1024
    assert rows["aten::relu"].device_memory_usage == 1024
    assert rows["aten::matmul"].device_memory_usage == 1024
    assert rows["aten::matmul"].self_device_memory_usage == 0
    assert "FL Mem" in found.key_averages().table()
    with profile() as found:
        torch.relu(x @ x)
    assert averages(found)["aten::mm"].device_memory_usage == 0


def test_a_users_range_holds_the_time_of_its_kernels() -> None:
    x = torch.ones(8, 8, device="fl")
    with flroute.enable("reference"), profile() as found, record_function("layer"):
        (x @ x).exp()
    (layer,) = [e for e in found.events() if e.name == "layer" and e.device_type == DeviceType.CPU]
    kernels = [
        e
        for e in found.events()
        if e.device_type == DeviceType.PrivateUse1 and e.name.startswith("reference/")
    ]
    assert len(kernels) == 2
    assert layer.device_time_total >= sum(e.time_range.elapsed_us() for e in kernels) > 0
    assert all(
        layer.time_range.start <= e.time_range.start <= e.time_range.end <= layer.time_range.end
        for e in kernels
    )


@pytest.mark.parametrize("where", WHERE)
def test_modules_have_ranges_if_asked(where: str) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.ReLU())).to("fl")
    x = torch.ones(1, 2, device="fl")
    with flroute.enable("reference") if where == "session" else record_function("alone"):
        with profile(with_modules=True) as found:
            net(x)
        with profile() as without:
            net(x)
    cpu = names(found, DeviceType.CPU)
    assert [name for name in cpu if name in ("Sequential", "0", "1", "1.0")] == [
        "Sequential",
        "0",
        "1",
        "1.0",
    ]
    rows = averages(found)
    assert rows["0"].device_time_total == pytest.approx(rows["aten::addmm"].device_time_total)
    assert not {"Sequential", "0"} & set(names(without, DeviceType.CPU))


def test_a_module_that_raises_ends_its_range() -> None:
    class Broken(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ZeroDivisionError

    with profile(with_modules=True) as found:
        with pytest.raises(ZeroDivisionError):
            torch.nn.Sequential(Broken())(torch.ones(1))
        torch.nn.ReLU()(torch.ones(1))
    events = {e.name: e for e in found.events()}
    assert {"Sequential", "0", "ReLU"} <= set(events)
    assert events["Sequential"].time_range.end <= events["ReLU"].time_range.start


def test_kernels_of_other_threads_and_of_sessions_opened_inside() -> None:
    x = torch.ones(2, device="fl")
    with profile() as found:
        thread = threading.Thread(target=x.exp)
        thread.start()
        thread.join()
        with flroute.enable("reference"):
            torch.ones(2).sin()
    kernels = [name.rpartition(":")[2] for name in names(found) if name.startswith("reference/")]
    assert sorted(set(kernels) & {"exp", "sin"}) == ["exp", "sin"]


def test_backward_and_the_optimizer() -> None:
    w = torch.ones(4, 4, device="fl", requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)
    with flroute.enable("reference"), profile() as found:
        (w @ w).sum().backward()
        optimizer.step()
    assert names(found).count("reference/numpy:mm") == 3
    rows = averages(found)
    (step,) = [row for name, row in rows.items() if name.startswith("Optimizer.step")]
    assert 0 < step.device_time_total < sum(row.self_device_time_total for row in rows.values())


def test_the_host_alone_is_as_it_was() -> None:
    """Without the device's activity nothing is recorded, and a profile of host work has no rows of the device."""
    x = torch.ones(2, device="fl")
    with profile(activities=[ProfilerActivity.CPU]) as found:
        x.exp()
    assert names(found) == []
    assert "Self FL" not in found.key_averages().table()
    with profile() as found:
        torch.ones(2, device="cpu").exp()
    assert names(found) == []


def test_cycles_of_a_schedule_are_told_apart(tmp_path: Path) -> None:
    x = torch.ones(2, device="fl")
    seen: list[list[str]] = []

    def ready(found: Any) -> None:
        seen.append([n for n in names(found) if n.startswith("reference/")])
        found.export_chrome_trace(str(tmp_path / f"{len(seen)}.json"))

    with profile(schedule=schedule(wait=1, warmup=1, active=2, repeat=2), on_trace_ready=ready) as found:
        for _ in range(8):
            x.exp()
            found.step()
    assert [len(cycle) for cycle in seen] == [2, 2]
    for number in (1, 2):
        assert len(device_rows(tmp_path / f"{number}.json")) == 2


def test_cycles_can_be_added_up() -> None:
    x = torch.ones(2, device="fl")
    with profile(schedule=schedule(wait=0, warmup=0, active=1, repeat=3), acc_events=True) as found:
        for _ in range(3):
            x.exp()
            found.step()
    assert sum(n.startswith("reference/") for n in names(found)) == 3


def test_a_profile_that_ends_with_an_error() -> None:
    x = torch.ones(2, device="fl")
    found = profile()
    with pytest.raises(IndexError), found:
        x.exp()[2]
    assert any(n.startswith("reference/") for n in names(found))


def test_autograds_own_profiler() -> None:
    x = torch.ones(2, device="fl")
    with torch.autograd.profiler.profile(use_device="fl") as found:
        x.exp()
    assert any(e.name.startswith("reference/") for e in found.function_events)
    assert [e.kernels[0].name for e in found.function_events if e.name == "aten::exp" and e.kernels]
    with torch.autograd.profiler.profile(enabled=False, use_device="fl") as found:
        x.exp()
    assert found is None


# Chrome traces --------------------------------------------------------------------------------------------------------------


def device_rows(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    events = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]
    return [e for e in events if e.get("cat") == "kernel"]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_has_the_kernels_inside_their_ops(name: str, tmp_path: Path) -> None:
    x = torch.ones(8, 8, device="fl:1")
    with profile() as found:
        x @ x
    path = tmp_path / name
    found.export_chrome_trace(str(path))
    (kernel,) = device_rows(path)
    assert kernel["name"] == "reference/numpy:mm"
    assert kernel["args"]["op"] == "aten::mm"
    assert kernel["args"]["route"] == "native"
    assert kernel["args"]["bytes"] == 3 * 256
    data = path.read_bytes()
    events = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]
    ops = [e for e in events if e.get("name") == "aten::mm" and e.get("cat") == "cpu_op"]
    op = max(ops, key=lambda e: e["dur"])  # a first call also asks PyTorch's shape rules
    slack = 50  # microseconds: two clocks
    assert op["ts"] - slack <= kernel["ts"]
    assert kernel["ts"] + kernel["dur"] <= op["ts"] + op["dur"] + slack
    (process,) = [e for e in events if e.get("name") == "process_name" and e["pid"] == kernel["pid"]]
    assert process["args"]["name"] == "fl:1 (reference:1)"


def test_a_trace_of_the_host_alone_is_pytorchs_own(tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as found:
        torch.ones(2, device="cpu").exp()
    found.export_chrome_trace(str(tmp_path / "trace.json"))
    assert device_rows(tmp_path / "trace.json") == []
