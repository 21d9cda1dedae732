"""The demo: what it trains, what it promises, what it shows."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from flroute import demo
from flroute.report import Report
from flroute.vocabulary import Decision, Reason, Route

ERF = Decision("aten::erf", Route.FALLBACK, None, "fl:0", Reason.NO_KERNEL, detail="write [one]", calls=3)


@pytest.fixture(scope="module")
def data() -> demo.Digits:
    return demo.load_digits()


def test_the_split_is_fixed_and_covers_everything(data: demo.Digits) -> None:
    again = demo.load_digits()
    assert torch.equal(data.test_images, again.test_images)
    assert len(data.train_labels) + len(data.test_labels) == 1797
    assert data.train_images.shape[1:] == (1, 8, 8)
    assert 0 <= data.train_images.min() < data.train_images.max() <= 1


def test_a_seed_decides_weights_and_batches(data: demo.Digits) -> None:
    same, again, other = (demo.make_model(seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(same.parameters(), again.parameters(), strict=True))
    assert not torch.equal(next(same.parameters()), next(other.parameters()))

    def labels(seed: int) -> torch.Tensor:
        return torch.cat([labels for _, labels in demo.batches(data, epochs=2, seed=seed)])

    assert torch.equal(labels(1), labels(1))
    assert not torch.equal(labels(1), labels(2))
    assert len(labels(1)) == 2 * len(data.train_labels)


def test_the_host_learns_and_every_step_is_announced(data: demo.Digits) -> None:
    steps: list[None] = []
    outcome = demo.train(
        demo.make_model(0), data, device="cpu", epochs=3, seed=0, after_step=lambda: steps.append(None)
    )  # fmt: skip
    assert outcome.accuracy > 0.9
    assert len(steps) == 3 * data.batches_per_epoch


def comparison(host: float, device: float, epochs: int = demo.EPOCHS) -> demo.Comparison:
    return demo.Comparison(
        demo.Outcome(host, 1.0), demo.Outcome(device, 2.0), Report([ERF], device="fl:0"), epochs
    )  # fmt: skip


def test_the_promise() -> None:
    assert comparison(0.98, 0.975).broken_promise() is None
    assert "differ by 1.10%" in str(comparison(0.991, 0.98).broken_promise())
    assert "96.90% is under 97%" in str(comparison(0.975, 0.969).broken_promise())
    assert comparison(0.5, 0.5, epochs=1).broken_promise() is None


def test_what_is_shown() -> None:
    text = io.StringIO()
    demo.show(comparison(0.98, 0.975), Console(file=text, width=160))
    shown = text.getvalue()
    assert "aten::erf, 3 calls, first from unknown: no_kernel: write [one]" in shown
    assert "98.00%" in shown
    assert "97.50%" in shown


def test_one_epoch_on_the_reference_vendor_without_a_fallback(tmp_path: Path) -> None:
    text = io.StringIO()
    kept = demo.run(
        device="reference", fallback="error", epochs=1, seed=0,
        decisions=tmp_path / "decisions.json", console=Console(file=text, width=160),
    )  # fmt: skip
    shown = text.getvalue()
    assert kept, shown
    assert "fallbacks: none" in shown
    assert "native share: 100.0%" in shown
    record = json.loads((tmp_path / "decisions.json").read_text())
    assert record["native_share"] == 1.0
    kernels = {decision["op"]: decision["kernel"] for decision in record["decisions"]}
    assert kernels["aten::convolution"].startswith("reference/")
    assert kernels["aten::convolution_backward"].startswith("reference/")
    assert record["bytes_to_device"] > 0
