"""Data on its way to the device: workers, pinned memory, copies that are told not to block."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import flroute

REFERENCE, OPAQUE = flroute.device("reference:1"), flroute.device("opaque:0")
ROWS = torch.arange(24.0).reshape(12, 2)


class OnDevice(Dataset[torch.Tensor]):
    """The mistake of moving data in a worker."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(2, device="fl")


class Stream(IterableDataset[Any]):
    """Nested batches."""

    def __iter__(self) -> Any:
        return ({"x": row, "y": (row.sum(), int(row[0]))} for row in ROWS)


@pytest.mark.parametrize("device", [REFERENCE, OPAQUE], ids=["reference", "opaque"])
@pytest.mark.parametrize("session", [False, True], ids=["outside", "session"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "options",
    [{}, {"pin_memory": True}, {"pin_memory": True, "pin_memory_device": "fl"}],
    ids=["", "pinned", "for fl"],
)
@pytest.mark.filterwarnings("ignore:.*pin_memory_device.*")
def test_batches_reach_the_device(
    options: dict[str, Any], workers: int, session: bool, device: torch.device
) -> None:
    loader = DataLoader(TensorDataset(ROWS), batch_size=4, num_workers=workers, **options)

    def load() -> list[torch.Tensor]:
        return [batch.to(device, non_blocking=True) for (batch,) in loader]

    if session:
        with flroute.enable(device, fallback="error", default_device=False) as opened:
            batches = load()
        moved = [d for d in opened.decisions if d.route == "copy"]
        assert sum(d.bytes_to_device for d in moved) == ROWS.nbytes, "each byte is counted once"
    else:
        batches = load()
    assert {batch.device for batch in batches} == {device}
    assert torch.equal(torch.cat([batch.cpu() for batch in batches]), ROWS)


def test_an_epoch_after_another_with_workers_that_stay() -> None:
    loader = DataLoader(
        TensorDataset(ROWS),
        batch_size=5,
        num_workers=2,
        persistent_workers=True,
        prefetch_factor=2,
        pin_memory=True,
    )
    for _ in range(3):
        assert sum(batch.to(REFERENCE).sum().item() for (batch,) in loader) == ROWS.sum().item()


def test_nested_batches_are_pinned_too() -> None:
    for batch in DataLoader(Stream(), batch_size=4, num_workers=1, pin_memory=True):
        assert batch["x"].to(REFERENCE).sum(1).tolist() == batch["y"][0].tolist()


def test_shuffling_is_the_hosts() -> None:
    """A session's default device or a device's own state must not change the order of an epoch."""

    def order() -> list[float]:
        torch.manual_seed(3)
        return [row.item() for (row,) in DataLoader(TensorDataset(ROWS[:, 0]), shuffle=True)]

    plain = order()
    with flroute.enable(REFERENCE, default_device=False):
        assert order() == plain


def test_a_worker_that_moves_its_data_is_told_what_to_do() -> None:
    with pytest.raises(Exception, match=r"cannot be sent to another process.*batch\.to\('fl'\)"):
        next(iter(DataLoader(OnDevice(), num_workers=1)))


@pytest.mark.parametrize("device", [REFERENCE, OPAQUE], ids=["reference", "opaque"])
@pytest.mark.parametrize("session", [False, True], ids=["outside", "session"])
def test_copies_that_are_told_not_to_block(session: bool, device: torch.device) -> None:
    """When such a call returns, the values are there: there is nothing to wait for, and waiting does no harm."""

    def run() -> None:
        host = torch.randn(50, 3)
        there = host.to(device, non_blocking=True)
        host_copy, target = host.clone(), torch.empty(50, 3)
        host.zero_()
        back = there.to("cpu", non_blocking=True)
        target.copy_(there, non_blocking=True)
        other = torch.empty(50, 3, device=device)
        other.copy_(host_copy.pin_memory(), non_blocking=True)
        across = there.to("fl:0", non_blocking=True)
        cast = there.to(dtype=torch.float64, non_blocking=True)
        torch.fl.synchronize(device)
        for result in (there, back, target, other, across, cast):
            assert torch.equal(result.cpu().float(), host_copy)
        module = torch.nn.Linear(3, 3).to(device, non_blocking=True)
        assert module.weight.device == device

    if session:
        with flroute.enable(device, fallback="allow", default_device=False):
            run()
    else:
        run()


def test_pinning() -> None:
    if torch.cuda.is_available():
        pytest.skip("cuda pins host memory itself")
    host = torch.ones(3)
    assert host.pin_memory() is not None
    assert host.pin_memory().data_ptr() == host.data_ptr(), "the tensor itself: nothing is copied"
    assert host.pin_memory("fl").device.type == "cpu"
    assert not host.is_pinned()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        host.to(REFERENCE).pin_memory()
    with pytest.raises(flroute.DeviceError, match="only host tensors can be pinned"):
        torch.empty(3, device=REFERENCE, pin_memory=True)
    with pytest.raises(
        NotImplementedError, match="getPinnedMemoryAllocator"
    ):  # the page on torch.fl says what to do
        torch.empty(3, pin_memory=True)
    with flroute.enable(default_device=False):
        made = torch.empty(3, pin_memory=True)
    assert made.device.type == "cpu"
    assert made.is_pinned(), "C++ that asked for it insists"
    assert not torch.empty(3).is_pinned()
