"""What ``flroute.bisect`` says of a metric that cannot be bisected, and of state files that are not its own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flroute
from flroute.errors import BisectError
from flroute.vendor import Kernel
from support import COPY, Made, Vendors, named, throw_away_vendors

vendors = pytest.fixture(throw_away_vendors)


@pytest.fixture
def made(vendors: Vendors) -> Made:
    """A vendor whose ``exp`` is wrong; ``tanh`` and ``neg`` are right."""
    return vendors(
        COPY,
        Kernel("aten::exp", named("wrong_exp", lambda x: np.exp(x) + np.float32(0.5))),
        Kernel("aten::tanh", named("right_tanh", lambda x: np.tanh(x))),
        Kernel("aten::neg", named("right_neg", lambda x: -x)),
    )


def number() -> float:
    return float(torch.ones(3).exp().tanh().neg().sum())


def bisected(made: Made, metric: Callable[[], Any] = number, **options: Any) -> flroute.Bisection:
    return flroute.bisect(metric, 1e-4, device=made.name, progress=False, **options)


def refusal(made: Made, metric: Callable[[], Any] = number, **options: Any) -> str:
    with pytest.raises(BisectError) as caught:
        bisected(made, metric, **options)
    return str(caught.value)


def test_a_metric_that_is_not_deterministic(made: Made) -> None:
    calls = itertools.count()
    said = refusal(made, lambda: number() + next(calls))
    assert "is not deterministic: two runs on the device gave" in said
    assert next(calls) == 2  # before anything else is tried


def test_a_metric_that_differs_less_than_counts_is_bisected(made: Made) -> None:
    calls = itertools.count()
    assert bisected(made, lambda: number() + 1e-6 * next(calls)).ops == ("aten::exp",)


def test_a_metric_that_is_bad_on_the_host_too(made: Made) -> None:
    said = refusal(made, good=1.0)
    assert "with everything on the host, and 1 is good" in said
    assert "no kernel is at fault" in said


def test_a_good_value_may_be_given(made: Made) -> None:
    right = float(torch.ones(3).exp().tanh().neg().sum())
    assert bisected(made, good=right).ops == ("aten::exp",)


def test_a_metric_that_raises(made: Made) -> None:
    def metric() -> float:
        raise KeyError("accuracy")

    said = refusal(made, metric)
    assert "raised KeyError, with everything on the device: 'accuracy'" in said


def test_a_metric_that_raises_only_with_some_ops_on_the_host_says_with_which(made: Made) -> None:
    calls = itertools.count()

    def metric() -> float:
        if next(calls) == 3:
            raise ValueError("now")
        return number()

    assert "raised ValueError, with aten::exp on the host: now" in refusal(made, metric)


def test_a_metric_that_is_nan_on_the_host(made: Made) -> None:
    assert "is nan with everything on the host: it is no measure" in refusal(
        made, lambda: number() * float("nan")
    )


@pytest.mark.parametrize("answer", [None, torch.ones(2), "high", [1.0]])
def test_a_metric_that_is_no_number(made: Made, answer: object) -> None:
    def metric() -> object:
        number()
        return answer

    assert "must return one number, it returned" in refusal(made, metric)


def test_a_metric_that_computes_nothing_on_the_device(made: Made) -> None:
    assert "is computed by a vendor's kernel: there is nothing to replace" in refusal(made, lambda: 1.5)


def test_a_metric_that_opens_a_session_of_its_own(made: Made) -> None:
    def metric() -> float:
        with flroute.enable(device=made.name, fallback="allow"):
            return number()

    assert "opens a session of its own, which bisect does not reach" in refusal(made, metric)


def test_a_session_cannot_be_told_to_refuse_the_host(made: Made) -> None:
    assert "takes no fallback='error'" in refusal(made, fallback="error")


# -- state files --------------------------------------------------------------------------------------------------


class Interrupted:
    """A metric that is interrupted in its n-th call."""

    def __init__(self, at: int) -> None:
        self.calls, self.at = 0, at

    def __call__(self) -> float:
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt
        return number()


def test_an_interrupted_search_goes_on_from_its_file(made: Made, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    whole = bisected(made, Interrupted(99))
    with pytest.raises(KeyboardInterrupt):
        bisected(made, Interrupted(5), state=state)
    assert len(json.loads(state.read_text())["runs"]) == 4
    rest = Interrupted(99)
    found = bisected(made, rest, state=state)
    assert found.ops == whole.ops == ("aten::exp",)
    assert (found.runs, found.kept) == (whole.runs, 4)
    assert rest.calls == whole.runs - 4
    assert "4 of them from the state file" in str(found)
    assert not state.exists()


def kept_by(made: Made, state: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        bisected(made, Interrupted(3), state=state)


def test_a_state_file_of_something_else_is_refused(made: Made, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    kept_by(made, state)
    before = state.read_text()
    said = refusal(made, number, state=state)
    assert "Interrupted" in said
    assert "number'" in said
    assert "Remove it, or name another file" in said
    assert state.read_text() == before


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda whole: {**whole, "torch": "1.0"}, "is of PyTorch 1.0, and this is PyTorch"),
        (lambda whole: {**whole, "version": 99}, "is no state file of this flroute"),
        (lambda whole: [], "is no state file of this flroute"),
        (lambda whole: {**whole, "runs": {"device": {"metric": 1}}}, "is damaged"),
        (lambda whole: {**whole, "runs": [1]}, "is damaged"),
    ],
)
def test_a_state_file_that_is_wrong_is_refused(
    made: Made, tmp_path: Path, edit: Callable[[Any], Any], words: str
) -> None:
    state = tmp_path / "state.json"
    kept_by(made, state)
    state.write_text(json.dumps(edit(json.loads(state.read_text()))))
    assert words in refusal(made, Interrupted(99), state=state)


def test_a_state_file_that_cannot_be_read_or_written_is_named(made: Made, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    state.write_text("{")
    assert "cannot be read" in refusal(made, state=state)
    assert "cannot be written" in refusal(made, state=tmp_path / "no folder" / "state.json")
