"""PyTorch's modules under ``alias=("cuda",)``: ``torch.cuda``, AMP, random numbers, profiler, collectives, flags."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import nn

import flroute
from flroute.cuda_alias.page import to_markdown
from flroute.device import torch_fl
from support import allow_global_flags, cuda_session, redirected_names

FIRST = torch.device("cuda", 0)


session = pytest.fixture(cuda_session)


def test_torch_cuda_is_the_devices_module(session: flroute.Session) -> None:
    assert torch.cuda.is_available()
    assert torch.cuda.is_initialized()
    assert torch.cuda.device_count() == 2
    assert torch.cuda.get_device_name("cuda:1") == torch_fl.get_device_name(1)
    assert torch.cuda.get_device_properties(0).total_memory > 0
    assert torch.cuda.get_device_capability() == torch_fl.get_device_capability()
    assert torch.cuda.memory.memory_allocated(FIRST) == torch_fl.memory_allocated(0)
    x = torch.ones(1000, device="cuda")
    assert torch.cuda.max_memory_allocated() >= x.nbytes
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.empty_cache()
    torch.cuda.synchronize("cuda:0")
    assert torch.get_device_module("cuda") is torch.cuda is torch.get_device_module()
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert torch.backends.cuda.is_built()
    assert {
        "torch.cuda.is_available",
        "torch.cuda.get_device_name",
        "torch.cuda.synchronize",
    } <= redirected_names(session)


def test_every_name_of_torch_fl_answers_as_torch_cudas(session: flroute.Session) -> None:
    """Where nothing has to be said about numbers, what one says the other says."""
    for name in (
        "has_half",
        "is_bf16_supported",
        "get_arch_list",
        "memory_reserved",
        "initial_seed",
        "mem_get_info",
    ):
        mine, theirs = getattr(torch.cuda, name), getattr(torch_fl, name)
        assert (mine() if callable(mine) else mine) == (theirs() if callable(theirs) else theirs), name


def test_streams_and_events(session: flroute.Session) -> None:
    side, done = torch.cuda.Stream(device=1), torch.cuda.Event(enable_timing=True)
    assert isinstance(side, torch.cuda.Stream)
    assert isinstance(side, torch.Stream)
    assert isinstance(torch.cuda.current_stream(), torch.cuda.Stream)
    assert not isinstance(done, torch.cuda.Stream)
    start = torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(side):
        assert torch.cuda.current_device() == 1
        start.record()
        x = torch.ones(2, device="cuda") * 2
        done.record()
    torch.cuda.current_stream(1).wait_stream(side)
    x.record_stream(side)
    torch.cuda.synchronize()
    assert start.elapsed_time(done) > 0
    assert x.get_device() == 1


def test_a_subclass_of_a_stream_is_one(session: flroute.Session) -> None:
    class Named(torch.cuda.Stream):  # type: ignore[misc, valid-type]
        name = "copies"

    assert Named().name == "copies"
    assert isinstance(Named(), torch_fl.Stream)


@pytest.mark.parametrize("entry", ["torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast"])
@pytest.mark.filterwarnings("ignore:.*is deprecated")
def test_autocast_by_every_name(session: flroute.Session, entry: str) -> None:
    x = torch.ones(2, 2, device="cuda")
    make = {
        "torch.autocast": lambda: torch.autocast("cuda", dtype=torch.float16),
        "torch.amp.autocast": lambda: torch.amp.autocast(device_type="cuda"),
        "torch.cuda.amp.autocast": lambda: torch.cuda.amp.autocast(),
    }[entry]
    assert not torch.is_autocast_enabled()
    with make():
        assert torch.is_autocast_enabled()
        assert torch.is_autocast_enabled("cuda")
        assert (
            (x @ x).dtype
            is torch.get_autocast_gpu_dtype()
            is torch.get_autocast_dtype("cuda")
            is torch.float16
        )
        assert not torch.is_autocast_enabled("cpu")
    assert (x @ x).dtype is torch.float32


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.filterwarnings("ignore:.*is deprecated")
def test_a_scaled_step_in_both_apis(session: flroute.Session, old: bool) -> None:
    scaler = (
        torch.cuda.amp.GradScaler(init_scale=4.0) if old else torch.amp.GradScaler("cuda", init_scale=4.0)
    )
    model = nn.Linear(2, 1, bias=False).cuda()
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler.scale(model(torch.ones(1, 2).cuda()).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close((before - model.weight).cpu(), torch.ones(1, 2))
    assert torch.amp.GradScaler(init_scale=2.0).get_scale() == 2.0  # whose device is cuda where none is named


def test_a_function_with_custom_casts(session: flroute.Session) -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            assert not torch.is_autocast_enabled("cuda")
            return x @ x

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, gradient):  # type: ignore[no-untyped-def]
            return gradient

    x = torch.ones(2, 2, device="cuda", requires_grad=True)
    with torch.autocast("cuda"):
        assert Product.apply(x).dtype is torch.float32


def test_random_numbers(session: flroute.Session) -> None:
    generator = torch.Generator(device="cuda").manual_seed(3)
    assert isinstance(generator, torch.Generator)
    expected = torch.randn(4, generator=torch.Generator().manual_seed(3))
    assert torch.equal(torch.randn(4, device="cuda", generator=generator).cpu(), expected)
    torch.cuda.manual_seed_all(1)
    states = torch.cuda.get_rng_state_all()
    first = torch.rand(3, device="cuda").cpu()
    with torch.random.fork_rng(devices=[0]):
        torch.rand(3, device="cuda")
    second = torch.rand(3, device="cuda").cpu()
    torch.cuda.set_rng_state_all(states)
    assert torch.equal(torch.rand(3, device="cuda").cpu(), first)
    assert torch.equal(torch.rand(3, device="cuda").cpu(), second)
    torch.manual_seed(0)


def test_a_profile_by_cudas_names(session: flroute.Session) -> None:
    x = torch.ones(4, 4, device="cuda")
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        x @ x
    table = profile.key_averages().table(sort_by="cuda_time_total")
    assert "reference/numpy:mm" in table
    events = [event for event in profile.events() if event.name == "aten::mm"]
    assert sum(event.device_time_total for event in events) > 0
    with torch.autograd.profiler.profile(use_cuda=True) as old:
        x @ x
    assert "reference/numpy:mm" in {event.name for event in old.function_events}


def test_ranges_for_nvidias_profilers_are_accepted_and_logged_once(
    session: flroute.Session, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="flroute"):
        for _ in range(2):
            torch.cuda.nvtx.range_push("step")
            torch.cuda.nvtx.range_pop()
    lines = [record.getMessage() for record in caplog.records if "range_push" in record.getMessage()]
    assert len(lines) == 1
    assert "torch.profiler" in lines[0]


def test_flags_of_cudas_libraries_are_accepted_and_logged_once(
    session: flroute.Session, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_global_flags(monkeypatch)
    with caplog.at_level(logging.INFO, logger="flroute"):
        for _ in range(2):
            torch.backends.cudnn.deterministic = True
            torch.backends.cuda.matmul.allow_tf32 = True
    assert torch.backends.cudnn.deterministic
    lines = [record.getMessage() for record in caplog.records if "without effect" in record.getMessage()]
    assert [line.partition(":")[0] for line in lines] == [
        "torch.backends.cudnn.deterministic",
        "torch.backends.cuda.matmul.allow_tf32",
    ]


def test_data_parallel_over_the_visible_devices(session: flroute.Session) -> None:
    model = nn.Linear(3, 2).cuda()
    x = torch.randn(6, 3)
    expected = model(x.cuda()).cpu()
    for parallel in (
        nn.DataParallel(model),
        nn.DataParallel(model, device_ids=[0, 1]),
        nn.DataParallel(model, ["cuda:0"]),
    ):
        result = parallel(x.cuda())
        assert result.device == FIRST
        torch.testing.assert_close(result.cpu(), expected)


def test_packed_sequences(session: flroute.Session) -> None:
    packed = nn.utils.rnn.pack_padded_sequence(torch.ones(2, 3, 4).cuda(), [3, 2], batch_first=True)
    assert packed.is_cuda
    assert packed.cuda().data.device == FIRST
    assert not packed.cpu().is_cuda
    output, _ = nn.LSTM(4, 5, batch_first=True).cuda()(packed)
    assert output.is_cuda


def test_nccl_is_the_backend_of_the_device(session: flroute.Session) -> None:
    distributed = torch.distributed
    assert distributed.is_nccl_available()
    distributed.init_process_group(
        "nccl", store=distributed.HashStore(), rank=0, world_size=1, device_id=FIRST
    )
    try:
        assert distributed.get_backend() == "nccl"
        x = torch.full((2,), 3.0, device="cuda")
        distributed.all_reduce(x)
        assert x.tolist() == [3, 3]
        group = distributed.new_group([0], backend="nccl")
        distributed.broadcast(x, 0, group=group)
        model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2).cuda(0), device_ids=[0], output_device=0)
        model(x).sum().backward()
        assert model.module.weight.grad is not None
        assert model.module.weight.grad.is_cuda
    finally:
        distributed.destroy_process_group()
    assert "torch.distributed.init_process_group" in redirected_names(session)


def test_a_group_that_names_backends_by_device(session: flroute.Session) -> None:
    distributed = torch.distributed
    distributed.init_process_group("cpu:gloo,cuda:nccl", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        for place in ("cpu", "cuda"):
            x = torch.ones(2, device=place)
            distributed.all_reduce(x)
            assert x.tolist() == [1, 1]
    finally:
        distributed.destroy_process_group()


def test_threads_of_pools_hear_of_cuda(session: flroute.Session) -> None:
    from concurrent.futures import ThreadPoolExecutor
    from multiprocessing.pool import ThreadPool

    def work(number: int) -> tuple[bool, float]:
        x = torch.full((2,), float(number), device="cuda")
        return x.is_cuda, x.sum().item()

    expected = [(True, 2.0 * number) for number in range(4)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, range(4))) == expected
    with ThreadPool(2) as workers:
        assert workers.map(work, range(4)) == expected


def test_the_page_is_up_to_date() -> None:
    page = (Path(__file__).parent.parent / "docs" / "run.md").read_text(encoding="utf-8")
    if f"Of PyTorch {'.'.join(torch.__version__.split('.')[:2])}:" in page:
        assert page == to_markdown(), "make it anew: python -m flroute.cuda_alias.page > docs/run.md"


def test_errors_of_cudas_may_be_caught_by_name(session: flroute.Session) -> None:
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.empty(2**46, device="cuda")
    assert issubclass(torch.cuda.CudaError, Exception)

    def catches_cudas() -> None:
        try:
            1 / 0  # noqa: B018 -- the error is what is wanted
        except torch.cuda.CudaError:
            pytest.fail("caught")

    with pytest.raises(ZeroDivisionError):
        catches_cudas()
