"""What training code for cuda does besides moving tensors, under ``alias=("cuda",)``: as projects of others write it."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.queue import SimpleQueue
from torch.profiler import ProfilerActivity

import flroute
from flroute.errors import AliasError
from support import cuda_session, redirected_names, unique

FIRST = torch.device("cuda", 0)

session = pytest.fixture(cuda_session)


# Data of a tensor -------------------------------------------------------------------------------------------------


def test_the_data_of_a_parameter_moves_under_the_optimizer(session: flroute.Session) -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    (parameter * 2).sum().backward()
    parameter.data = parameter.data.cuda()
    if parameter.grad is not None:
        parameter.grad.data = parameter.grad.data.cuda()
    assert (parameter.device, parameter.grad.device, parameter.requires_grad) == (FIRST, FIRST, True)
    optimizer.step()
    assert parameter.tolist() == [0, 0]
    (parameter * 4).sum().backward()
    assert parameter.grad.tolist() == [6, 6]
    parameter.data = parameter.data.cpu()
    assert parameter.device.type == "cpu"
    assert parameter.grad.device == FIRST, "as with cuda: whoever moves data moves the gradient"
    parameter.data = parameter.data.double()
    assert parameter.dtype is torch.float64


# Processes and groups ---------------------------------------------------------------------------------------------


@pytest.fixture
def group() -> Iterator[Any]:
    distributed = torch.distributed
    distributed.init_process_group("nccl", store=distributed.HashStore(), rank=0, world_size=1)
    yield distributed
    distributed.destroy_process_group()


def test_objects_come_from_a_collective_as_they_went(session: flroute.Session, group: Any) -> None:
    state = {
        "device": FIRST,
        "weight": torch.arange(2.0, device="cuda"),
        "bias": nn.Parameter(torch.ones(1).cuda()),
    }
    gathered, sent, scattered = [None], [state], [None]
    group.all_gather_object(gathered, state)
    group.broadcast_object_list(sent, src=0, device=FIRST)
    group.scatter_object_list(scattered, [state], src=0)
    for (found,) in (gathered, sent, scattered):
        assert found["device"] == found["weight"].device == found["bias"].device == FIRST
        assert found["weight"].tolist() == [0, 1]


def test_devices_come_through_a_queue_and_a_pickle_as_they_went(session: flroute.Session) -> None:
    queue: Any = SimpleQueue(ctx=torch.multiprocessing.get_context())
    queue.put(FIRST)
    assert queue.get() == pickle.loads(pickle.dumps(FIRST)) == FIRST


def test_parallel_training_that_looks_for_unused_parameters(session: flroute.Session, group: Any) -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    model = nn.parallel.DistributedDataParallel(Half().cuda(), device_ids=[0], find_unused_parameters=True)
    for _ in range(2):
        model(torch.ones(1, 2).cuda()).sum().backward()
    assert model.module.used.weight.grad.tolist() == [[2, 2], [2, 2]]
    assert model.module.unused.weight.grad is None


@pytest.mark.filterwarnings("ignore:FSDP is switching")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_first_fsdp(session: flroute.Session, group: Any) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(nn.Linear(2, 1, bias=False), device_id=torch.cuda.current_device())
    model(torch.ones(1, 2).cuda()).sum().backward()
    (parameter,) = model.parameters()
    assert parameter.is_cuda
    assert parameter.grad.flatten().tolist() == [1, 1]


# Ops of the user's ------------------------------------------------------------------------------------------------


def test_a_kernel_of_the_users_for_cuda_is_one_for_the_device(session: flroute.Session) -> None:
    heard = []

    @torch.library.custom_op(f"mine::{unique('double')}", mutates_args=(), device_types="cpu")
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * -2

    @double.register_kernel("cuda")
    def _(x: torch.Tensor) -> torch.Tensor:
        heard.append(x.is_cuda)
        return x * torch.full((), 2.0, device="cuda")

    @torch.library.custom_op(f"mine::{unique('anywhere')}", mutates_args=())
    def triple(x: torch.Tensor) -> torch.Tensor:
        heard.append(x.is_cuda)
        return x * 3

    x = torch.ones(2)
    assert double(x.cuda()).tolist() == [2, 2]
    assert double(x).tolist() == [-2, -2]
    assert triple(x.cuda()).tolist() == [3, 3]
    assert heard == [True, True]
    assert "torch.library.Library.impl" in redirected_names(session)


def test_a_library_of_the_users_for_cuda(session: flroute.Session) -> None:
    name = unique("mine")
    library = torch.library.Library(name, "DEF")
    library.define("next(Tensor x) -> Tensor")
    library.impl("next", lambda x: x + 10, "CPU")
    for_cuda = torch.library.Library(name, "IMPL", "CUDA")
    for_cuda.impl("next", lambda x: x + 1)
    assert getattr(torch.ops, name).next(torch.ones(1).cuda()).item() == 2
    assert getattr(torch.ops, name).next(torch.ones(1)).item() == 11
    aten = torch.library.Library("aten", "IMPL")
    with pytest.raises(AliasError, match=r"mul.Tensor of PyTorch's own .* CUDA: .*flroute\.vendor\.kernel"):
        aten.impl("mul.Tensor", lambda x, y: x, "CUDA")


# Profilers --------------------------------------------------------------------------------------------------------


def test_what_starts_nvidias_profilers_is_accepted_and_logged_once(
    session: flroute.Session, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="flroute"):
        for _ in range(2):
            torch.cuda.check_error(torch.cuda.cudart().cudaProfilerStart())
            with torch.cuda.profiler.profile(), torch.autograd.profiler.emit_nvtx():
                assert torch.ones(2).cuda().sum().item() == 2
            torch.cuda.cudart().cudaProfilerStop()
    said = [
        record.getMessage().partition(":")[0] for record in caplog.records if "NVIDIA" in record.getMessage()
    ]
    assert sorted(said) == [
        "torch.autograd.profiler.emit_nvtx",
        "torch.cuda.cudart().cudaProfilerStart",
        "torch.cuda.cudart().cudaProfilerStop",
        "torch.cuda.profiler.start",
        "torch.cuda.profiler.stop",
    ]


def test_a_profile_of_everything_there_is(session: flroute.Session) -> None:
    assert torch.profiler.supported_activities() == {ProfilerActivity.CPU, ProfilerActivity.CUDA}
    x = torch.ones(4, 4, device="cuda")
    for activities in (None, torch.profiler.supported_activities(), [ProfilerActivity.CUDA]):
        with torch.profiler.profile(activities=activities) as profile:
            x @ x
        assert "reference/numpy:mm" in {event.name for event in profile.events()}, activities


# Memory, streams, defaults ----------------------------------------------------------------------------------------


def test_full_memory_is_told_in_the_words_that_libraries_look_for(session: flroute.Session) -> None:
    from accelerate.utils.memory import should_reduce_batch_size
    from pytorch_lightning.utilities.memory import is_oom_error

    with pytest.raises(torch.cuda.OutOfMemoryError, match=r"^CUDA out of memory. aten::.* on fl:0") as caught:
        torch.empty(2**46, device="cuda")
    assert should_reduce_batch_size(caught.value)
    assert is_oom_error(caught.value)


def test_full_memory_of_the_device_by_its_own_name_is_told_in_its_own_words() -> None:
    from accelerate.utils.memory import should_reduce_batch_size

    with flroute.enable(), pytest.raises(torch.OutOfMemoryError, match=r"^aten::.* on fl:0") as caught:
        torch.empty(2**46, device="fl")
    assert should_reduce_batch_size(caught.value)


def test_streams_and_events_say_where_they_are(session: flroute.Session) -> None:
    event = torch.cuda.Event()
    assert event.device is None
    event.record()
    assert torch.cuda.Stream(device=1).device == torch.device("cuda:1")
    assert torch.cuda.current_stream().device == event.device == FIRST


def test_a_default_type_of_the_hosts_takes_the_device_back(session: flroute.Session) -> None:
    torch.set_default_tensor_type("torch.cuda.DoubleTensor")
    assert (torch.ones(2).device, torch.ones(2).dtype) == (FIRST, torch.float64)
    torch.set_default_tensor_type(torch.FloatTensor)
    assert (torch.ones(2).device.type, torch.ones(2).dtype) == ("cpu", torch.float32)


def test_a_default_device_ends_with_the_session() -> None:
    with flroute.enable(alias=("cuda",)):
        torch.set_default_device("cuda")
        assert torch.ones(2).is_cuda
    assert torch.ones(2).device.type == "cpu"
    assert torch.get_default_device() == torch.device("cpu")


def test_the_type_of_autocast_by_its_old_name(session: flroute.Session) -> None:
    torch.set_autocast_gpu_dtype(torch.bfloat16)
    try:
        assert torch.get_autocast_gpu_dtype() is torch.bfloat16
        with torch.autocast("cuda"):
            assert (torch.ones(2, 2).cuda() @ torch.ones(2, 2).cuda()).dtype is torch.bfloat16
    finally:
        torch.set_autocast_gpu_dtype(torch.float16)


def test_there_is_no_version_of_cuda_as_on_other_accelerators(session: flroute.Session) -> None:
    """So is it with PyTorch for ROCm, where ``torch.cuda`` is available likewise."""
    assert torch.version.cuda is None
