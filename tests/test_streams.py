"""Streams and events, ``torch.accelerator``: they agree with each other, and with a vendor that works asynchronously."""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

import flroute
from flroute.device.torch_fl.accelerator import ANSWERS
from flroute.errors import StreamError
from flroute.torch_compat import PlainEvent, PlainStream, accelerator_functions
from flroute.vendor import Kernel, Streams
from support import Plugin, Vendors, make_vendor_object, named, throw_away_vendors, unique

vendors = pytest.fixture(throw_away_vendors)


@pytest.fixture(autouse=True)
def _everything_comes_back() -> Iterator[None]:
    yield
    for index in range(4):
        torch.fl.set_stream(torch.fl.default_stream(index))
    torch.fl.set_device(0)


# -- a vendor whose kernels go on after they return


class Queues(Streams):
    """Each stream is a thread that works off a queue; a moment is an event at the end of it."""

    def __init__(self) -> None:
        super().__init__()
        self.queues: dict[tuple[int, int], queue.Queue[Callable[[], None] | None]] = {}
        self.used: list[tuple[int, int, int, int]] = []

    def submit(self, device: int, stream: int, work: Callable[[], None]) -> None:
        if (device, stream) not in self.queues:
            self.queues[device, stream] = queue.Queue()
            threading.Thread(target=self.run, args=(self.queues[device, stream],), daemon=True).start()
        self.queues[device, stream].put(work)

    @staticmethod
    def run(works: queue.Queue[Callable[[], None] | None]) -> None:
        while (work := works.get()) is not None:
            work()
            works.task_done()

    def close(self) -> None:
        for works in self.queues.values():
            works.put(None)

    def record(self, device: int, stream: int) -> Any:
        moment, times = threading.Event(), []
        self.submit(device, stream, lambda: (times.append(time.perf_counter_ns()), moment.set()))
        return moment, times

    def is_idle(self, device: int, stream: int) -> bool:
        works = self.queues.get((device, stream))
        return works is None or works.unfinished_tasks == 0

    def is_over(self, device: int, moment: Any) -> bool:
        return moment[0].is_set()

    def wait(self, device: int, moment: Any) -> None:
        assert moment[0].wait(20)

    def wait_on_stream(self, device: int, stream: int, moment: Any) -> None:
        self.submit(device, stream, lambda: self.wait(device, moment))

    def milliseconds(self, device: int, start: Any, end: Any) -> float:
        return (end[1][0] - start[1][0]) / 1e6

    def synchronize(self, device: int) -> None:
        for at, stream in list(self.queues):
            if at == device:
                self.wait(device, self.record(device, stream))

    def use(self, device: int, stream: int, address: int, nbytes: int) -> None:
        self.used.append((device, stream, address, nbytes))


@dataclasses.dataclass
class Slow:
    """A device of that vendor, and the gate that its ``relu`` waits at."""

    device: str
    other: str
    streams: Queues
    gate: threading.Event


@pytest.fixture
def slow(vendors: Vendors) -> Iterator[Slow]:
    streams, gate = Queues(), threading.Event()

    def relu(x: np.ndarray) -> np.ndarray:
        result = np.zeros_like(x)

        def work() -> None:
            assert gate.wait(20)
            np.maximum(x, 0, out=result)

        streams.submit(0, streams.current(0), work)
        return result

    vendor = make_vendor_object(unique("slow"), Kernel("aten::relu", named("relu", relu)))
    devices = vendors.register(Plugin(dataclasses.replace(vendor, streams=streams)), vendor.name)
    yield Slow(devices[0].name, devices[1].name, streams, gate)
    gate.set()
    streams.close()


def test_work_goes_to_the_current_stream_and_is_waited_for(slow: Slow) -> None:
    x = torch.ones(3).to(slow.device)
    side = torch.fl.Stream(slow.device)
    with torch.fl.stream(side):
        y = torch.relu(x)
        done = side.record_event()
    main = torch.fl.current_stream(slow.device)
    assert not side.query()
    assert not done.query()
    assert main.query(), "nothing was given to the default stream"
    main.wait_stream(side)
    assert not main.query(), "it waits for the other stream now"
    slow.gate.set()
    torch.fl.synchronize(slow.device)
    assert done.query()
    assert y.tolist() == [1.0, 1.0, 1.0]


def test_each_way_of_waiting_waits(slow: Slow) -> None:
    side = torch.fl.Stream(slow.device)
    for wait in (
        side.synchronize,
        lambda: side.record_event().synchronize(),
        lambda: torch.fl.synchronize(slow.device),
        lambda: torch.accelerator.synchronize(torch.device(slow.device)),
    ):
        slow.gate.clear()
        with torch.fl.stream(side):
            torch.relu(torch.ones(2, device=slow.device))
        over = threading.Event()
        waiter = threading.Thread(target=lambda wait=wait, over=over: (wait(), over.set()))
        waiter.start()
        assert not over.wait(0.05)
        slow.gate.set()
        waiter.join(20)
        assert over.is_set()
        side.synchronize()


def test_a_stream_of_another_vendor_is_waited_for_by_the_host(slow: Slow) -> None:
    side = torch.fl.Stream(slow.device)
    with torch.fl.stream(side):
        torch.relu(torch.ones(2, device=slow.device))
    threading.Timer(0.05, slow.gate.set).start()
    done = side.record_event()
    torch.fl.current_stream("fl:0").wait_event(done)
    assert done.query()


def test_time_between_events(slow: Slow) -> None:
    start, end = (torch.fl.Event(enable_timing=True) for _ in range(2))
    stream = torch.fl.current_stream(slow.device)
    start.record(stream)
    torch.relu(torch.ones(2, device=slow.device))
    end.record(stream)
    with pytest.raises(StreamError, match=r"not done yet.*synchronize"):
        start.elapsed_time(end)
    time.sleep(0.02)
    slow.gate.set()
    end.synchronize()
    assert start.elapsed_time(end) >= 15
    assert end.elapsed_time(start) == -start.elapsed_time(end)


@pytest.mark.parametrize("session", [False, True], ids=["outside", "session"])
def test_record_stream_reaches_the_vendor(slow: Slow, session: bool) -> None:
    x = torch.ones(3).to(slow.device)
    side = torch.fl.Stream(slow.device)
    if session:
        with flroute.enable(slow.device, fallback="error", default_device=False) as opened:
            x[1:].record_stream(side)
        assert [(d.op, str(d.route)) for d in opened.decisions if "record" in d.op] == [
            ("aten::record_stream", "native")
        ]
    else:
        x[1:].record_stream(side)
    assert slow.streams.used == [(0, side.stream_id, x.data_ptr(), 12)]
    with pytest.raises(StreamError, match=rf"tensor on {slow.device} was given a stream of fl:0"):
        x.record_stream(torch.fl.Stream("fl:0"))
    assert len(slow.streams.used) == 1


TOUCH: dict[str, Callable[[torch.Tensor], Any]] = {
    "cpu": lambda y: y.cpu().sum().item(),
    "item": lambda y: y[0].item() * 3,
    "tolist": lambda y: sum(y.tolist()),
    "fallback": lambda y: torch.special.i0(y).cpu().sum().item() / torch.special.i0(torch.ones(1)).item(),
    "copy_": lambda y: torch.zeros(3).copy_(y).sum().item(),
    "another device": lambda y: y.to("fl:0").cpu().sum().item(),
    "DLPack": lambda y: np.from_dlpack(y, device="cpu").sum(),
}


@pytest.mark.parametrize("session", [False, True], ids=["outside", "session"])
@pytest.mark.parametrize("name", TOUCH)
def test_the_host_waits_before_it_touches_memory_that_it_sees(slow: Slow, name: str, session: bool) -> None:
    x = torch.ones(3).to(slow.device)
    with flroute.enable(slow.device, fallback="allow", default_device=False) if session else nullcontext():
        with torch.fl.stream(torch.fl.Stream(slow.device)):
            y = torch.relu(x)
        threading.Timer(0.05, slow.gate.set).start()
        assert TOUCH[name](y) == pytest.approx(3.0)


# -- streams as they stand


def test_a_stream_is_pytorchs() -> None:
    stream = torch.fl.Stream()
    assert isinstance(stream, torch.Stream)
    assert (stream.device, stream.device_index) == (torch.device("fl:0"), 0)
    assert stream != torch.fl.default_stream()
    assert stream == torch.fl.Stream(stream_id=stream.stream_id, device_index=0)
    assert len({stream, torch.fl.Stream(stream_id=stream.stream_id, device_index=0), torch.fl.Stream()}) == 2
    assert torch.fl.Stream(1, priority=-1).device == torch.device("fl:1")
    with torch.fl.device(1):
        assert torch.fl.Stream().device == torch.device("fl:1")
    stream.synchronize()
    assert stream.query()


def test_the_default_stream_is_the_current_one() -> None:
    assert torch.fl.current_stream() == torch.fl.default_stream()
    assert torch.fl.current_stream(1) == torch.fl.default_stream("fl:1")
    assert torch.fl.current_stream(1) != torch.fl.current_stream(0)
    assert torch.fl.default_stream().stream_id == 0


ENTER: dict[str, Callable[[torch.Stream], Any]] = {
    "torch.fl.stream": lambda s: torch.fl.stream(s),
    "StreamContext": lambda s: torch.fl.StreamContext(s),
    "the stream": lambda s: s,
}


@pytest.mark.parametrize("name", ENTER)
def test_a_stream_is_current_in_its_context_with_its_device(name: str) -> None:
    enter = ENTER[name]
    one, other = torch.fl.Stream(0), torch.fl.Stream(1)
    with enter(one):
        assert torch.fl.current_stream() == torch.accelerator.current_stream() == one
        with enter(other):
            assert torch.fl.current_device() == torch.accelerator.current_device_index() == 1
            assert torch.empty(1, device="fl").device == torch.device("fl:1")
            assert torch.fl.current_stream() == other
            assert torch.fl.current_stream(0) == one
            with enter(one), enter(other), enter(one):
                assert torch.fl.current_stream() == one
            assert torch.fl.current_stream() == other
        assert torch.fl.current_stream(1) == torch.fl.default_stream(1)
        assert torch.fl.current_device() == 0
    assert torch.fl.current_stream() == torch.fl.default_stream()
    with pytest.raises(KeyError), enter(other):
        raise KeyError
    assert (torch.fl.current_device(), torch.fl.current_stream(1)) == (0, torch.fl.default_stream(1))


def test_no_stream_changes_nothing() -> None:
    with torch.fl.stream(None):
        assert torch.fl.current_stream() == torch.fl.default_stream()
    torch.fl.set_stream(None)
    assert torch.fl.current_device() == 0


def test_set_stream() -> None:
    for set_stream in (torch.fl.set_stream, torch.accelerator.set_stream):
        stream = torch.fl.Stream(1)
        set_stream(stream)
        assert torch.fl.current_device() == 1
        assert torch.fl.current_stream() == torch.accelerator.current_stream() == stream
        torch.fl.set_device(0)
        assert torch.fl.current_stream() == torch.fl.default_stream()


def test_the_current_stream_is_the_threads_own() -> None:
    seen: list[torch.Stream] = []
    with torch.fl.stream(torch.fl.Stream()):
        thread = threading.Thread(target=lambda: seen.append(torch.fl.current_stream()))
        thread.start()
        thread.join()
    assert seen == [torch.fl.default_stream()]


def test_the_plain_type_is_taken_too() -> None:
    plain = PlainStream(stream_id=7, device_index=1, device_type=20)
    assert type(plain) is PlainStream
    with torch.fl.stream(plain):
        assert torch.fl.current_stream() == plain
        assert torch.fl.current_device() == 1
    torch.fl.current_stream().wait_stream(plain)


@pytest.mark.parametrize("bad", [PlainStream("cpu"), "fl:0", 3], ids=["cpu", "text", "number"])
def test_a_stream_of_another_kind_of_device(bad: Any) -> None:
    for take in (
        torch.fl.stream,
        torch.fl.set_stream,
        torch.fl.Event().record,
        torch.fl.Event().wait,
        torch.fl.current_stream().wait_stream,
    ):
        with pytest.raises(StreamError, match=r"type 'fl'.*torch\.fl\.Stream\(\)"):
            take(bad)
    assert torch.fl.current_stream() == torch.fl.default_stream()


def test_a_stream_on_a_device_that_does_not_exist() -> None:
    for make in (
        torch.fl.Stream,
        torch.Stream,
        torch.fl.current_stream,
        torch.fl.default_stream,
        torch.fl.synchronize,
    ):
        with pytest.raises(flroute.DeviceError, match="fl:99 does not exist"):
            make("fl:99")


# -- events


def test_an_event_measures_time() -> None:
    start, end = torch.fl.Event(enable_timing=True), torch.fl.Event(True)
    start.record()
    time.sleep(0.01)
    end.record()
    assert start.elapsed_time(end) >= 9
    assert isinstance(start, torch.Event)
    assert start.device == torch.device("fl:0")


def test_an_event_that_was_never_recorded_is_over() -> None:
    event = torch.fl.Event()
    assert event.query()
    event.synchronize()
    event.wait()
    assert event.device is None
    assert repr(event) == "<torch.fl.Event on no device yet>"


@pytest.mark.parametrize(
    ("record", "which"),
    [((), "the first"), ((0,), "the second"), ((1,), "the first")],
    ids=["none", "start", "end"],
)
def test_an_event_timed_before_it_was_recorded(record: tuple[int, ...], which: str) -> None:
    for make in (torch.fl.Event, lambda enable_timing: torch.Event("fl", enable_timing=enable_timing)):
        events = [make(enable_timing=True) for _ in range(2)]
        for index in record:
            events[index].record()
        with pytest.raises(ValueError, match=rf"{which} event was never recorded: call \.record\(\)"):
            events[0].elapsed_time(events[1])


def test_an_event_made_without_timing() -> None:
    timed, untimed = torch.fl.Event(enable_timing=True), torch.fl.Event()
    timed.record()
    untimed.record()
    for start, end in ((timed, untimed), (untimed, timed)):
        with pytest.raises(StreamError, match="enable_timing=True"):
            start.elapsed_time(end)


def test_events_of_two_devices() -> None:
    one, other = torch.fl.Event(True), torch.fl.Event(True)
    one.record(torch.fl.current_stream(0))
    other.record(torch.fl.current_stream(1))
    with pytest.raises(StreamError, match="fl:0 and fl:1, whose clocks differ"):
        one.elapsed_time(other)
    torch.fl.current_stream(1).wait_event(one)  # which cuda allows


def test_an_event_stays_on_its_device() -> None:
    event = torch.fl.Event()
    event.record(torch.fl.Stream(1))
    assert event.device == torch.device("fl:1")
    with pytest.raises(StreamError, match=r"fl:1 cannot be recorded on a stream of fl:0"):
        event.record(torch.fl.Stream(0))
    event.record()
    assert event.device == torch.device("fl:1"), "the current stream of its own device"
    with pytest.raises(StreamError, match="fl:1 cannot be recorded"):
        torch.fl.Stream(0).record_event(torch.fl.Event(device="fl:1"))


def test_events_are_not_shared_with_other_processes() -> None:
    with pytest.raises(StreamError, match="another process"):
        torch.fl.Event(interprocess=True)
    with pytest.raises(StreamError, match="other processes"):
        torch.fl.Event().ipc_handle()


def test_an_event_of_another_kind() -> None:
    for take in (torch.fl.current_stream().wait_event, torch.fl.current_stream().record_event):
        with pytest.raises(StreamError, match="expected an event"):
            take("soon")
    with pytest.raises(StreamError, match="expected an event"):
        torch.fl.Event(True).elapsed_time(PlainEvent("cpu"))


# -- torch.Stream, torch.Event, torch.accelerator


def test_torch_stream_and_event_make_ours_for_fl() -> None:
    for make in (
        lambda: torch.Stream("fl:1"),
        lambda: torch.Stream(device="fl:1", priority=-1),
        lambda: torch.Stream(torch.device("fl", 1)),
        lambda: torch.Stream(device=1),
        lambda: torch.Stream(stream_id=5, device_index=1, device_type=20),
    ):
        stream = make()
        assert type(stream) is torch.fl.Stream
        assert stream.device == torch.device("fl:1")
    assert torch.Stream("fl:1") != torch.Stream("fl:1"), "each is a new one"
    assert type(torch.Stream()) is torch.fl.Stream, "fl is the accelerator"
    for event in (torch.Event("fl", enable_timing=True), torch.Event(enable_timing=True), torch.Event()):
        assert type(event) is torch.fl.Event
    assert torch.Event("fl:1").device == torch.device("fl:1")


def test_torch_stream_stays_a_type() -> None:
    assert isinstance(PlainStream("cpu"), torch.Stream)
    assert type(torch.Stream("cpu")) is PlainStream
    assert issubclass(torch.fl.Stream, torch.Stream)
    assert issubclass(PlainStream, torch.Stream)
    assert not isinstance(3, torch.Stream)
    assert not isinstance(torch.fl.Event(), torch.Stream)
    assert torch.Stream.__name__ == "Stream"
    assert isinstance(PlainEvent("cpu"), torch.Event)

    class Named(torch.Stream):
        """What a library may do."""

    assert isinstance(Named(stream_id=1, device_index=0, device_type=20), Named)
    assert not isinstance(torch.fl.Stream(), Named)


def test_every_function_behind_torch_accelerator_is_answered() -> None:
    """What PyTorch's C++ answers rightly by itself is named here; a new function shows up."""
    by_itself = {"getAccelerator", "getAllocatorSettings", "setAllocatorSettings"}
    assert set(accelerator_functions()) - by_itself == set(ANSWERS) & set(accelerator_functions())


def test_torch_accelerator_agrees() -> None:
    acc = torch.accelerator
    acc.set_device_index(1)
    assert torch.fl.current_device() == acc.current_device_index() == 1
    with acc.device_index(0):
        assert torch.fl.current_device() == 0
        assert torch.empty(1, device="fl").device == torch.device("fl:0")
    with acc.device_index(None):
        assert torch.fl.current_device() == 1
    acc.synchronize()
    with pytest.raises(flroute.DeviceError, match="fl:99"):
        acc.set_device_index(99)
    x = torch.ones(1000, device="fl:1")
    for index in (0, 1):
        assert acc.memory_allocated(index) == torch.fl.memory_allocated(index)
        assert acc.max_memory_allocated(index) == torch.fl.max_memory_allocated(index)
        assert acc.memory_reserved(index) == torch.fl.memory_reserved(index)
        assert acc.max_memory_reserved(index) == torch.fl.max_memory_reserved(index)
        assert dict(acc.memory_stats(index)) == torch.fl.memory_stats(index)
    assert acc.memory_allocated(1) >= x.nbytes
    if hasattr(acc, "get_memory_info"):
        assert acc.get_memory_info(1) == torch.fl.mem_get_info(1)
    if hasattr(acc, "empty_host_cache"):
        acc.empty_host_cache()
    if hasattr(acc, "get_device_capability"):
        dtypes = acc.get_device_capability()["supported_dtypes"]
        assert {torch.float32, torch.bfloat16, torch.bool} <= dtypes
        assert torch.quint8 not in dtypes
    del x
    acc.empty_cache()
    acc.reset_peak_memory_stats(1)
    acc.reset_accumulated_memory_stats(1)
    assert acc.max_memory_allocated(1) == torch.fl.memory_allocated(1)


def test_torch_accelerator_tells_the_random_state() -> None:
    random = pytest.importorskip("torch.accelerator.random", reason="PyTorch 2.14 is the first to have it")
    before = torch.fl.get_rng_state_all()
    try:
        torch.fl.manual_seed_all(3)
        torch.fl.set_rng_state(torch.tensor([5, *[0] * 15], dtype=torch.uint8), 1)
        assert (random.initial_seed(0), random.initial_seed("fl:1")) == (3, 5)
        assert random.get_rng_state(1).tolist() == torch.fl.get_rng_state(1).tolist()
        assert [state[0].item() for state in random.get_rng_state_all()][:2] == [3, 5]
        with pytest.raises(flroute.DeviceError, match="fl:99"):
            random.initial_seed(99)
    finally:
        torch.fl.set_rng_state_all(before)


def _in_a_side_stream(x: torch.Tensor) -> torch.Tensor:
    side = torch.Stream(x.device)
    with side:
        y = torch.relu(x) * 2
        done = torch.Event("fl")
        done.record(side)
    done.synchronize()
    y.record_stream(torch.fl.current_stream())
    return y


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_streams_in_and_around_compiled_code(backend: str) -> None:
    x = torch.ones(3, device="fl")
    for function in (lambda x: torch.relu(x) * 2, _in_a_side_stream):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend=backend)
        with torch.fl.stream(torch.fl.Stream()):
            assert compiled(x).tolist() == [2.0, 2.0, 2.0]
        assert torch.fl.current_stream() == torch.fl.default_stream()
