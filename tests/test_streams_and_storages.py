"""Streams, events and storages that are resized: what FSDP asks of a device."""

from __future__ import annotations

import threading

import pytest
import torch

import flroute
from flroute.errors import DeviceError


@pytest.fixture(autouse=True)
def _device() -> None:
    flroute.device("reference")


def test_a_stream_is_current_within_its_context_on_its_device_and_thread() -> None:
    side = torch.fl.Stream(1)
    assert torch.fl.current_stream(1) == torch.fl.default_stream(1) != side
    with torch.fl.stream(side) as entered:
        assert entered is side
        assert torch.fl.current_stream() is side
        assert torch.fl.current_device() == 1
        assert torch.fl.current_stream(0) == torch.fl.default_stream(0)
        elsewhere = []
        thread = threading.Thread(target=lambda: elsewhere.append(torch.fl.current_stream(1)))
        thread.start()
        thread.join()
        assert elsewhere == [torch.fl.default_stream(1)]
    assert torch.fl.current_stream(1) == torch.fl.default_stream(1)
    assert torch.fl.current_device() == 0


def test_it_is_left_when_an_error_leaves_the_context() -> None:
    with pytest.raises(ZeroDivisionError), torch.fl.stream(torch.fl.Stream(1)):
        raise ZeroDivisionError
    assert torch.fl.current_stream(1) == torch.fl.default_stream(1)
    assert torch.fl.current_device() == 0


def test_no_stream_changes_nothing() -> None:
    with torch.fl.stream(None) as entered:
        assert entered is None
        assert torch.fl.current_stream() == torch.fl.default_stream()


def test_streams_differ_and_say_where_they_are() -> None:
    one, other = torch.fl.Stream(), torch.fl.Stream("fl:1")
    assert one != other
    assert one.device == torch.device("fl:0")
    assert other.device == torch.device("fl:1")
    one.wait_stream(other)
    one.wait_event(other.record_event())
    assert one.query()
    torch.ones(2, device="fl:0").record_stream(one)


def test_the_time_between_two_events_is_known_once_both_are_recorded() -> None:
    start, end, plain = (
        torch.fl.Event(enable_timing=True),
        torch.fl.Event(enable_timing=True),
        torch.fl.Event(),
    )
    with pytest.raises(DeviceError, match="must be recorded before"):
        start.elapsed_time(end)
    start.record()
    torch.ones(1000, device="fl:0").exp()
    torch.fl.Stream().record_event(end)
    assert end.query()
    assert start.elapsed_time(end) > 0
    assert end.elapsed_time(start) < 0
    with pytest.raises(DeviceError, match="enable_timing=True"):
        start.elapsed_time(plain)
    with pytest.raises(DeviceError, match="belongs to its process"):
        torch.fl.Event(interprocess=True)


@pytest.mark.parametrize("device", ["fl:0", "fl:2"])
def test_a_storage_that_is_resized_keeps_what_fits_for_every_tensor_over_it(device: str) -> None:
    x = torch.arange(4.0).to(device)
    view = x[:2]
    storage = x.untyped_storage()
    before = torch.fl.memory_allocated(device)
    assert storage.resize_(32) is storage
    assert storage.nbytes() == 32
    assert x.cpu().tolist() == [0, 1, 2, 3]
    assert view.cpu().tolist() == [0, 1]
    assert view.data_ptr() == x.data_ptr()
    storage.resize_(8)
    assert view.cpu().tolist() == [0, 1]
    storage.resize_(0)
    assert storage.nbytes() == 0
    assert torch.fl.memory_allocated(device) < before
    storage.resize_(16)
    x.copy_(torch.ones(4))
    assert view.cpu().tolist() == [1, 1]
    assert torch.fl.memory_allocated(device) == before


def test_storages_of_the_host_are_resized_as_ever() -> None:
    storage = torch.arange(4.0).untyped_storage()
    storage.resize_(32)
    assert storage.nbytes() == 32
