"""Random states: saved, restored, forked, kept by checkpointing; the same numbers in each grad mode and when compiled."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import flroute

REFERENCE, SECOND, OPAQUE = (
    flroute.device("reference:0"),
    flroute.device("reference:1"),
    flroute.device("opaque:0"),
)
SHARED = [255] * 8  # the offset of a device that draws from the host's stream


@pytest.fixture(autouse=True)
def _shared_state() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch.manual_seed(0)


SEEDS: dict[str, Callable[[int], Any]] = {
    "shared": torch.manual_seed,
    "own": lambda seed: (torch.manual_seed(seed), torch.fl.manual_seed_all(seed)),
}


def draws(device: torch.device = REFERENCE) -> torch.Tensor:
    """Of every kind: factories, in place, like, dropout."""
    x = torch.ones(6, device=device)
    parts = (
        torch.rand(6, device=device),
        torch.randn_like(x),
        x.clone().exponential_(),
        functional.dropout(x, 0.5),
        torch.bernoulli(x / 2),
        torch.randint(0, 9, (6,), device=device).float(),
    )
    return torch.stack([part.detach().cpu() for part in parts])


# -- states


def test_every_state_at_once() -> None:
    torch.fl.manual_seed(1, REFERENCE)
    torch.fl.manual_seed(2, OPAQUE)
    states = torch.fl.get_rng_state_all()
    assert len(states) == torch.fl.device_count()
    assert [state.tolist()[8:] == SHARED for state in states] == [False, True, False, True]
    expected = [torch.rand(3, device=device).cpu() for device in (REFERENCE, OPAQUE)]
    torch.fl.manual_seed_all(9)
    torch.fl.set_rng_state_all(states)
    assert [state.tolist() for state in torch.fl.get_rng_state_all()] == [state.tolist() for state in states]
    for device, numbers in zip((REFERENCE, OPAQUE), expected, strict=True):
        assert torch.equal(torch.rand(3, device=device).cpu(), numbers)


def test_wrong_states_change_nothing() -> None:
    torch.fl.manual_seed(1, REFERENCE)
    before = [state.tolist() for state in torch.fl.get_rng_state_all()]
    with pytest.raises(flroute.DeviceError, match="16 bytes"):
        torch.fl.set_rng_state_all([torch.fl.get_rng_state(REFERENCE), torch.zeros(3, dtype=torch.uint8)])
    with pytest.raises(
        flroute.DeviceError, match=r"5 random states for 4 devices.*set_rng_state\(state, index\)"
    ):
        torch.fl.set_rng_state_all([torch.fl.get_rng_state(REFERENCE)] * 5)
    assert [state.tolist() for state in torch.fl.get_rng_state_all()] == before


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
def test_a_seed_that_pytorch_does_not_take(seed: int) -> None:
    before = torch.fl.get_rng_state_all()
    for plant in (torch.fl.manual_seed, torch.fl.manual_seed_all):
        with pytest.raises(ValueError, match=f"less than 2\\*\\*64, not {seed}"):
            plant(seed)
    assert all(map(torch.equal, torch.fl.get_rng_state_all(), before))
    with pytest.raises((RuntimeError, ValueError)):
        torch.manual_seed(seed)


def test_a_state_that_is_no_tensor() -> None:
    with pytest.raises(
        flroute.DeviceError, match=r"is 16 bytes .* got 'seed'; pass what torch.fl.get_rng_state"
    ):
        torch.fl.set_rng_state("seed")  # type: ignore[arg-type]


def test_seeds_from_the_system() -> None:
    torch.fl.seed()
    first = torch.fl.initial_seed()
    assert torch.fl.get_rng_state(SECOND).tolist()[8:] == SHARED, "only the current device"
    torch.fl.seed()
    assert torch.fl.initial_seed() != first
    torch.fl.seed_all()
    seeds = {tuple(state.tolist()[:8]) for state in torch.fl.get_rng_state_all()}
    assert len(seeds) == 1


def test_the_initial_seed_is_the_hosts_until_there_is_one() -> None:
    torch.manual_seed(31)
    assert torch.fl.initial_seed() == 31
    torch.fl.manual_seed(32)
    assert torch.fl.initial_seed() == 32
    with torch.fl.device(1):
        assert torch.fl.initial_seed() == 31
    torch.manual_seed(33)
    assert torch.fl.initial_seed() == 33


@pytest.mark.parametrize("seed", SEEDS)
def test_states_go_through_a_file(seed: str) -> None:
    SEEDS[seed](5)
    draws()
    file = io.BytesIO()
    torch.save({"host": torch.get_rng_state(), "fl": torch.fl.get_rng_state_all()}, file)
    expected = draws(), draws(SECOND)
    torch.manual_seed(77)
    torch.fl.manual_seed_all(78)
    file.seek(0)
    states = torch.load(file, weights_only=True)
    torch.set_rng_state(states["host"])
    torch.fl.set_rng_state_all(states["fl"])
    assert torch.equal(draws(), expected[0])
    assert torch.equal(draws(SECOND), expected[1])


# -- forks and checkpoints


@pytest.mark.filterwarnings("ignore:.*devices.*")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("devices", [None, [0], [0, 1], []], ids=str)
def test_a_fork_leaves_the_stream_alone(devices: list[int] | None, seed: str) -> None:
    SEEDS[seed](6)
    expected = draws()
    SEEDS[seed](6)
    before = torch.get_rng_state(), torch.fl.get_rng_state_all()
    with torch.random.fork_rng(devices, device_type="fl"):
        if devices != [] or seed == "shared":
            draws()
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before[0])
    for was, state in zip(before[1], torch.fl.get_rng_state_all(), strict=True):
        assert torch.equal(was, state)
    assert torch.equal(draws(), expected)


def test_a_fork_that_reseeds_and_fails() -> None:
    torch.fl.manual_seed(4, REFERENCE)
    before = torch.fl.get_rng_state(REFERENCE)

    def fail() -> None:
        torch.manual_seed(1)
        assert torch.fl.get_rng_state(REFERENCE).tolist()[8:] == SHARED
        raise KeyError

    with pytest.raises(KeyError), torch.random.fork_rng([0], device_type="fl"):
        fail()
    assert torch.equal(torch.fl.get_rng_state(REFERENCE), before)


@pytest.mark.parametrize("device", [REFERENCE, OPAQUE], ids=["reference", "opaque"])
@pytest.mark.parametrize("session", [False, True], ids=["outside", "session"])
@pytest.mark.parametrize("reentrant", [False, True], ids=["", "reentrant"])
@pytest.mark.parametrize("seed", SEEDS)
def test_checkpointing_draws_the_same_again(
    seed: str, reentrant: bool, session: bool, device: torch.device
) -> None:
    """Gradients through two checkpointed blocks, one in the other, are those of the same blocks without checkpoints."""

    def block(x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x * torch.rand_like(x), 0.5)

    def outer(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, block(x), use_reentrant=reentrant) * 2

    results = []
    with flroute.enable(device, fallback="allow", default_device=False) if session else nullcontext():
        for run in (lambda x: block(block(x)) * 2, lambda x: checkpoint(outer, x, use_reentrant=reentrant)):
            SEEDS[seed](8)
            x = torch.ones(50, device=device, requires_grad=True)
            y = run(x)
            y.sum().backward()
            after = torch.rand(4, device=device)
            results.append([t.detach().cpu() for t in (y, x.grad, after)])
    for plain, checkpointed in zip(*results, strict=True):
        assert torch.equal(plain, checkpointed)


def test_a_checkpoint_that_need_not_preserve() -> None:
    torch.fl.manual_seed(3, REFERENCE)
    x = torch.ones(200, device=REFERENCE, requires_grad=True)
    y = checkpoint(lambda t: functional.dropout(t, 0.5), x, use_reentrant=False, preserve_rng_state=False)
    y.sum().backward()
    assert not torch.equal(x.grad, y.detach())


# -- the same numbers however they are asked for


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "grad": nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "session": lambda: flroute.enable(REFERENCE, fallback="allow", default_device=False),
    "autocast": lambda: torch.autocast("fl", torch.bfloat16),
    "stream": lambda: torch.fl.stream(torch.fl.Stream()),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", MODES)
def test_each_mode_draws_the_same(mode: str, seed: str) -> None:
    SEEDS[seed](12)
    expected, state = draws(), torch.fl.get_rng_state(REFERENCE)
    SEEDS[seed](12)
    with MODES[mode]():
        assert torch.equal(draws(), expected)
        assert torch.equal(torch.fl.get_rng_state(REFERENCE), state)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("session", [False, True], ids=["outside", "session"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_draws_the_same(backend: str, session: bool, seed: str) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x, 0.5) + torch.rand_like(x) + torch.randn(x.shape, device=x.device)

    torch._dynamo.reset()
    compiled = torch.compile(step, backend=backend, fullgraph=True)
    with flroute.enable(REFERENCE, fallback="allow", default_device=False) if session else nullcontext():
        runs = []
        for function in (step, compiled):
            SEEDS[seed](14)
            x = torch.ones(30, device=REFERENCE, requires_grad=True)
            results = [function(x) for _ in range(2)]
            sum(results).sum().backward()
            runs.append([t.detach().cpu() for t in (*results, x.grad, torch.rand(3, device=REFERENCE))])
    for eager, other in zip(*runs, strict=True):
        assert torch.equal(eager, other)


def test_dtensor_draws_each_ranks_part_of_one_stream() -> None:
    """It moves the offset of a device's state, so that the device gets one of its own: the host's seed, from the beginning."""
    dist = pytest.importorskip("torch.distributed")
    if not dist.is_available():
        pytest.skip("this PyTorch has no torch.distributed")
    import torch.distributed.tensor._random as trackers
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, rand
    from torch.testing._internal.distributed.fake_pg import FakeStore

    parts, copies = [], []
    for rank in (0, 1):
        dist.init_process_group("cpu:fake,fl:fake", store=FakeStore(), rank=rank, world_size=2)
        try:
            torch.manual_seed(5)
            mesh = init_device_mesh("fl", (2,))
            with torch.fl.device(0):
                parts.append(rand(4, 4, device_mesh=mesh, placements=[Shard(0)]).to_local().cpu())
                copies.append(rand(8, device_mesh=mesh, placements=[Replicate()]).to_local().cpu())
                state = torch.fl.get_rng_state(torch.fl.current_device())
        finally:
            trackers._rng_tracker = None
            dist.destroy_process_group()
    assert not torch.equal(parts[0], parts[1])
    assert torch.equal(copies[0], copies[1])
    assert state.tolist() == [5, *[0] * 7, 24, *[0] * 7], (
        "the seed, and an offset moved on by the sizes of both"
    )
