"""Random numbers: one seed gives one stream on host and device; a device can be given a state of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

import flroute
from flroute.device import rng

REFERENCE, SECOND, OPAQUE = (
    flroute.device("reference:0"),
    flroute.device("reference:1"),
    flroute.device("opaque:0"),
)
DEVICES = [pytest.param(REFERENCE, id="reference"), pytest.param(OPAQUE, id="opaque")]

Draw = Callable[[torch.device], torch.Tensor]

DRAWS: dict[str, Draw] = {
    "rand": lambda d: torch.rand(2, 3, device=d),
    "randn": lambda d: torch.randn(20, device=d),
    "randint": lambda d: torch.randint(-5, 50, (3, 3), device=d),
    "randperm": lambda d: torch.randperm(9, device=d),
    "rand_like": lambda d: torch.rand_like(torch.zeros(4, device=d)),
    "randn_like": lambda d: torch.randn_like(torch.zeros(4, 2, device=d)),
    "normal": lambda d: torch.normal(torch.zeros(5, device=d), torch.ones(5, device=d)),
    "uniform_": lambda d: torch.empty(4, device=d).uniform_(2, 3),
    "normal_ through a view": lambda d: torch.zeros(4, 4, device=d).t()[1:3].normal_(),
    "exponential_": lambda d: torch.empty(4, device=d).exponential_(),
    "bernoulli": lambda d: torch.bernoulli(torch.full((9,), 0.5, device=d)),
    "bernoulli_": lambda d: torch.empty(9, device=d).bernoulli_(0.5),
    "multinomial": lambda d: torch.multinomial(torch.ones(6, device=d), 4),
    "dropout": lambda d: functional.dropout(torch.ones(30, device=d), 0.4),
    "dropout2d": lambda d: functional.dropout2d(torch.ones(2, 8, 2, 2, device=d), 0.4),
    "alpha_dropout": lambda d: functional.alpha_dropout(torch.ones(30, device=d), 0.4, training=True),
    "rrelu": lambda d: functional.rrelu(-torch.ones(8, device=d), training=True),
    "kaiming_uniform_": lambda d: torch.nn.init.kaiming_uniform_(torch.empty(3, 4, device=d)),
    "gumbel_softmax": lambda d: functional.gumbel_softmax(torch.ones(3, 4, device=d)),
}


@pytest.fixture(autouse=True)
def _shared_state() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("session", [False, True], ids=["outside", "session"])
@pytest.mark.parametrize("name", DRAWS)
def test_one_seed_one_stream(name: str, session: bool, device: torch.device) -> None:
    draw = DRAWS[name]
    torch.manual_seed(11)
    host = draw(torch.device("cpu")), torch.rand(2)
    torch.manual_seed(11)
    if session:
        with flroute.enable(device, fallback="allow"):
            there = draw(device), torch.rand(2, device="cpu")
    else:
        there = draw(device), torch.rand(2)
    assert there[0].device == device
    torch.testing.assert_close(there[0].cpu(), host[0], rtol=1e-6, atol=0)
    assert torch.equal(there[1], host[1]), "the host's stream goes on where the device left it"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("session", [False, True], ids=["outside", "session"])
@pytest.mark.parametrize("name", DRAWS)
def test_a_state_of_its_own(name: str, session: bool, device: torch.device) -> None:
    """``torch.fl.manual_seed`` repeats, moves on, and leaves the host's stream alone; composites do not lock themselves out."""
    draw = DRAWS[name]

    def run() -> None:
        before = torch.get_rng_state()
        torch.fl.manual_seed(5, device)
        first, second = draw(device), draw(device)
        torch.fl.manual_seed(5, device)
        assert torch.equal(draw(device), first)
        assert torch.equal(draw(device), second)
        if name != "multinomial":
            assert not torch.equal(first, second)
        assert torch.equal(torch.get_rng_state(), before)

    within(10, run if not session else lambda: _in_session(device, run))


def _in_session(device: torch.device, run: Callable[[], None]) -> None:
    with flroute.enable(device, fallback="allow"):
        run()


def within(seconds: float, run: Callable[[], None]) -> None:
    """Run in a thread, so that a deadlock fails the test rather than hanging it."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        rng._lock = threading.Lock()  # else every later test would hang, too
        pytest.fail("it hangs")
    if errors:
        raise errors[0]


def test_different_seeds_and_devices_differ() -> None:
    torch.fl.manual_seed(1, REFERENCE)
    torch.fl.manual_seed(2, SECOND)
    assert not torch.equal(torch.rand(8, device=REFERENCE).cpu(), torch.rand(8, device=SECOND).cpu())
    torch.fl.manual_seed_all(3)
    first = torch.rand(8, device=REFERENCE)
    assert torch.equal(first.cpu(), torch.rand(8, device=SECOND).cpu())
    assert not torch.equal(first, torch.rand(8, device=REFERENCE))


def test_state_is_sixteen_bytes_and_comes_back() -> None:
    torch.fl.manual_seed(77, REFERENCE)
    torch.rand(3, device=REFERENCE)
    state = torch.fl.get_rng_state(REFERENCE)
    assert (state.dtype, state.shape, state.device.type) == (torch.uint8, (16,), "cpu")
    assert int.from_bytes(bytes(state[:8].tolist()), "little") == 77
    assert int.from_bytes(bytes(state[8:].tolist()), "little") % 4 == 0, "cuda's offsets are multiples of 4"
    expected = torch.rand(3, device=REFERENCE)
    torch.fl.set_rng_state(state, REFERENCE)
    assert torch.equal(torch.rand(3, device=REFERENCE), expected)


def test_sharing_is_a_state_too() -> None:
    shared = torch.fl.get_rng_state(REFERENCE)
    assert shared.shape == (16,)
    torch.fl.manual_seed(1, REFERENCE)
    torch.fl.set_rng_state(shared, REFERENCE)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.fl.set_rng_state(shared, REFERENCE)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4, device=REFERENCE).cpu(), expected)


@pytest.mark.parametrize(
    "reseed", [torch.manual_seed, torch.random.manual_seed], ids=["torch", "torch.random"]
)
def test_manual_seed_returns_to_sharing(reseed: Callable[[int], object]) -> None:
    torch.fl.manual_seed_all(5)
    reseed(9)
    there = torch.rand(4, device=REFERENCE), torch.rand(4, device=SECOND)
    reseed(9)
    assert torch.equal(torch.cat([t.cpu() for t in there]), torch.cat([torch.rand(4), torch.rand(4)]))


def test_seed_returns_to_sharing() -> None:
    torch.fl.manual_seed_all(5)
    number = torch.seed()
    there = torch.rand(4, device=REFERENCE)
    torch.manual_seed(number)
    assert torch.equal(there.cpu(), torch.rand(4))


@pytest.mark.parametrize(
    "bad", [torch.zeros(8, dtype=torch.uint8), torch.zeros(16), torch.zeros(5056, dtype=torch.uint8)]
)
def test_a_wrong_state_is_refused(bad: torch.Tensor) -> None:
    torch.fl.manual_seed(4, REFERENCE)
    before = torch.fl.get_rng_state(REFERENCE)
    with pytest.raises(flroute.DeviceError, match="16 bytes"):
        torch.fl.set_rng_state(bad, REFERENCE)
    assert torch.equal(torch.fl.get_rng_state(REFERENCE), before)


def test_a_missing_device_is_refused() -> None:
    with pytest.raises(flroute.DeviceError, match="fl:99"):
        torch.fl.manual_seed(1, 99)
    with pytest.raises(flroute.DeviceError, match="fl:99"):
        torch.fl.get_rng_state("fl:99")


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
def test_fork_rng_puts_everything_back(own: bool) -> None:
    if own:
        torch.fl.manual_seed(21, REFERENCE)
    host, device = torch.get_rng_state(), torch.fl.get_rng_state(REFERENCE)
    with torch.random.fork_rng(devices=[0], device_type="fl"):
        torch.manual_seed(99)
        torch.fl.manual_seed(99, REFERENCE)
        torch.rand(5), torch.rand(5, device=REFERENCE)
    assert torch.equal(torch.get_rng_state(), host)
    assert torch.equal(torch.fl.get_rng_state(REFERENCE), device)


def test_a_generator_is_obeyed() -> None:
    generator = torch.Generator().manual_seed(8)
    torch.fl.manual_seed(1, REFERENCE)
    state = torch.fl.get_rng_state(REFERENCE)
    generator.manual_seed(8)
    generator.manual_seed(8)
    host = torch.empty(6).uniform_(generator=generator)
    generator.manual_seed(8)
    assert torch.equal(torch.empty(6, device=REFERENCE).uniform_(generator=generator).cpu(), host)
    assert torch.equal(torch.fl.get_rng_state(REFERENCE), state)


def test_checkpoint_repeats_the_dropout() -> None:
    from torch.utils.checkpoint import checkpoint

    for seed in (torch.manual_seed, lambda s: torch.fl.manual_seed(s, REFERENCE)):
        seed(3)
        x = torch.ones(40, device=REFERENCE, requires_grad=True)
        y = checkpoint(lambda t: functional.dropout(t, 0.5), x, use_reentrant=False)
        y.sum().backward()
        assert torch.equal(x.grad, y.detach()), "the backward pass drew another mask than the forward pass"


def test_threads_do_not_share_an_offset() -> None:
    torch.fl.manual_seed(6, REFERENCE)
    drawn: list[torch.Tensor] = []
    before = torch.get_rng_state()
    threads = [
        threading.Thread(target=lambda: drawn.extend(torch.rand(4, device=REFERENCE) for _ in range(25)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(drawn) == 100
    assert len({tuple(t.tolist()) for t in drawn}) == 100
    assert torch.equal(torch.get_rng_state(), before)
