"""Storages that are resized, which is how FSDP frees parameters."""

from __future__ import annotations

import pytest
import torch

import flroute


@pytest.fixture(autouse=True)
def _device() -> None:
    flroute.device("reference")


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
