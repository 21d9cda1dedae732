"""The device draws the host's numbers for the host's seed, without a fallback."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import flroute

DRAWS: dict[str, Callable[[str], torch.Tensor]] = {
    "bernoulli": lambda d: torch.bernoulli(torch.linspace(0, 1, 30).to(d)),
    "bernoulli_.Tensor": lambda d: torch.empty(4, 30, device=d).bernoulli_(torch.linspace(0, 1, 30).to(d)),
    "bernoulli_.Tensor of integers": lambda d: torch.empty(30, dtype=torch.int64, device=d).bernoulli_(
        torch.linspace(0, 1, 30, dtype=torch.float64).to(d)
    ),
    "bernoulli_.float": lambda d: torch.empty(30, device=d).bernoulli_(0.3),
    "binomial": lambda d: torch.binomial(torch.full((30,), 8.0, device=d), torch.full((30,), 0.3, device=d)),
    "cauchy_": lambda d: torch.empty(30, device=d).cauchy_(1, 2),
    "exponential_": lambda d: torch.empty(30, dtype=torch.float64, device=d).exponential_(2),
    "geometric_": lambda d: torch.empty(30, device=d).geometric_(0.3),
    "geometric_ of integers": lambda d: torch.empty(30, dtype=torch.int32, device=d).geometric_(0.3),
    "gamma": lambda d: torch.distributions.Gamma(
        torch.full((30,), 2.0, device=d), torch.ones(30, device=d)
    ).sample(),
    "log_normal_": lambda d: torch.empty(30, device=d).log_normal_(0.5, 1.5),
    "multinomial": lambda d: torch.multinomial(torch.arange(1.0, 31).to(d), 10),
    "multinomial with replacement": lambda d: torch.multinomial(torch.ones(3, 4, device=d), 10, True),
    "normal of means": lambda d: torch.normal(torch.arange(30.0).to(d), 2.0),
    "normal of deviations": lambda d: torch.normal(1.0, torch.arange(30.0).to(d)),
    "normal of each": lambda d: torch.normal(torch.arange(30.0).to(d), torch.ones(2, 30, device=d)),
    "poisson": lambda d: torch.poisson(torch.full((30,), 3.0, device=d)),
    "rand": lambda d: torch.rand(30, device=d),
    "randint": lambda d: torch.randint(-5, 50, (30,), device=d),
    "randint_like": lambda d: torch.randint_like(torch.zeros(30, device=d), 3, 9),
    "randn_like": lambda d: torch.randn_like(torch.zeros(30, device=d)),
    "randperm": lambda d: torch.randperm(30, device=d),
    "random_": lambda d: torch.empty(30, dtype=torch.int16, device=d).random_(),
    "random_.from": lambda d: torch.empty(30, device=d).random_(3, 9),
    "random_.to": lambda d: torch.empty(30, dtype=torch.uint8, device=d).random_(9),
    "uniform_ of a column": lambda d: torch.zeros(5, 6, device=d)[:, 2].uniform_(),
}

IN_HALF: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bernoulli": torch.bernoulli,
    "bernoulli_.Tensor": lambda p: torch.zeros_like(p).bernoulli_(p),
    "bernoulli_.Tensor of another dtype": lambda p: torch.zeros_like(p, dtype=torch.float32).bernoulli_(p),
    "bernoulli_.float": lambda p: torch.zeros_like(p).bernoulli_(0.3),
    "cauchy_": lambda p: torch.zeros_like(p).cauchy_(),
    "dropout": lambda p: torch.nn.functional.dropout(p, 0.3),
    "dropout of channels": lambda p: torch.nn.functional.dropout2d(p.view(1, 10, 3, 1), 0.3),
    "exponential_": lambda p: torch.zeros_like(p).exponential_(),
    "geometric_": lambda p: torch.zeros_like(p).geometric_(0.3),
    "log_normal_": lambda p: torch.zeros_like(p).log_normal_(),
    "multinomial": lambda p: torch.multinomial(p, 10),
    "normal of means": lambda p: torch.normal(p, 2.0),
    "normal of deviations": lambda p: torch.normal(1.0, p),
    "normal of each": lambda p: torch.normal(p, p),
    "poisson": torch.poisson,
    "randn_like": torch.randn_like,
    "random_": lambda p: torch.zeros_like(p).random_(2, 90),
    "uniform_ of a column": lambda p: torch.zeros_like(p).view(5, 6)[:, 2].uniform_(),
}


def _both(draw: Callable[[str], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(5)
    expected = draw("cpu")
    torch.manual_seed(5)
    with flroute.enable(device="reference", fallback="error", default_device=False) as session:
        made = draw("fl:0")
    assert not session.fallbacks
    return made, expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", IN_HALF)
def test_the_host_s_numbers_in_half_precision(name: str, dtype: torch.dtype) -> None:
    probabilities = torch.linspace(0.1, 0.9, 30).to(dtype)
    made, expected = _both(lambda device: IN_HALF[name](probabilities.to(device)))
    assert made.dtype is expected.dtype
    torch.testing.assert_close(made.cpu(), expected, rtol=1e-2, atol=0)


@pytest.mark.parametrize("name", DRAWS)
def test_the_host_s_numbers(name: str) -> None:
    made, expected = _both(DRAWS[name])
    assert made.device == torch.device("fl:0")
    assert made.stride() == expected.stride()
    torch.testing.assert_close(made.cpu(), expected)


def test_a_generator_of_the_caller_s() -> None:
    draws = []
    for device in ("cpu", "fl:0"):
        generator = torch.Generator().manual_seed(9)
        mean = torch.zeros(8, device=device)
        draws.append(torch.normal(mean, 1.0, generator=generator).cpu())
    assert torch.equal(*draws)


def test_wrong_probabilities_are_the_callers_error() -> None:
    with (
        flroute.enable(device="reference", fallback="error"),
        pytest.raises(RuntimeError, match="probability"),
    ):
        torch.multinomial(torch.tensor([-1.0, 2.0], device="fl:0"), 1)
