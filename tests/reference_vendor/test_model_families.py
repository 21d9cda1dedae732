"""Whole families of models train and answer on the device without a single fallback, to the host's numbers.

Both sides start from the same weights and the same seeds; dropout is on, so that the streams of random numbers count, too.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from model_zoo import FAMILIES, Inputs, made, moved, outcome, sow
from torch import Tensor, nn

import flroute

# The gradient of a bias of attention's keys is zero but for rounding, which Adam would scale up: hence its eps.
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    f"{kind.__name__}{' foreach' if foreach else ''}": lambda p, k=kind, o=options, f=foreach: k(
        p, **o, foreach=f
    )  # type: ignore[misc]
    for kind, options in [
        (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
        (torch.optim.Adam, {"lr": 1e-2, "eps": 1e-4}),
        (torch.optim.AdamW, {"lr": 1e-2, "eps": 1e-4}),
    ]
    for foreach in (False, True)
}
FOLLOWED = "AdamW foreach"
"""The optimizer whose parameters the model takes from one step to the next."""


class Training:
    """A model and, for each optimizer, a copy of its parameters to step on; all of them are given the model's gradients."""

    def __init__(self, model: nn.Module, inputs: Inputs) -> None:
        self.model, self.inputs = model, inputs
        self.copies = {name: [p.detach().clone() for p in model.parameters()] for name in OPTIMIZERS}
        self.optimizers = {name: OPTIMIZERS[name](copies) for name, copies in self.copies.items()}

    def step(self, seed: int) -> Tensor:
        """The loss; gradients and stepped copies stay to be looked at."""
        sow(seed)
        self.model.zero_grad()
        loss, _ = outcome(self.model, self.inputs)
        loss.backward()
        for name, optimizer in self.optimizers.items():
            for mine, parameter in zip(self.copies[name], self.model.parameters(), strict=True):
                mine.grad = parameter.grad
            optimizer.step()
        with torch.no_grad():
            for mine, parameter in zip(self.copies[FOLLOWED], self.model.parameters(), strict=True):
                parameter.copy_(mine)
        return loss.detach()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_trains_as_on_the_host(family: str) -> None:
    model, inputs = made(family)
    there = Training(copy.deepcopy(model).to("fl"), moved(inputs, "fl"))
    here = Training(model, inputs)
    for seed in range(2):
        expected = here.step(seed)
        with flroute.enable(device="reference", fallback="error", default_device=False) as session:
            loss = there.step(seed)
        assert not session.fallbacks
        torch.testing.assert_close(loss.cpu(), expected, rtol=1e-5, atol=1e-6)
        for (name, ours), theirs in zip(there.model.named_parameters(), here.model.parameters(), strict=True):
            _assert_near(f"gradient of {name}", ours.grad, theirs.grad)
        for optimizer in OPTIMIZERS:
            for ours, theirs in zip(there.copies[optimizer], here.copies[optimizer], strict=True):
                torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)
    for (name, ours), theirs in zip(there.model.named_buffers(), here.model.buffers(), strict=True):
        _assert_near(name, ours, theirs)


def _assert_near(name: str, ours: Tensor | None, theirs: Tensor | None) -> None:
    """To a ten-thousandth of the largest element."""
    assert (ours is None) == (theirs is None), name
    if ours is not None and theirs is not None:
        largest = float(theirs.abs().max())
        torch.testing.assert_close(
            ours.cpu(), theirs, rtol=0, atol=1e-4 * largest + 1e-6, msg=lambda m: f"{name}: {m}"
        )


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # the host's
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_answers_as_on_the_host(
    family: str, mode: Callable[[], contextlib.AbstractContextManager[None]]
) -> None:
    model, inputs = made(family)
    there = copy.deepcopy(model.eval()).to("fl")
    with mode():
        expected = outcome(model, inputs)
        with flroute.enable(device="reference", fallback="error", default_device=False) as session:
            answer = outcome(there, moved(inputs, "fl"))
    assert not session.fallbacks
    for ours, theirs in zip(answer, expected, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)


GREEDY: dict[str, Any] = {"do_sample": False}
SAMPLED: dict[str, Any] = {
    "do_sample": True,
    "top_k": 10,
    "top_p": 0.9,
    "temperature": 0.7,
    "repetition_penalty": 1.2,
}
BEAMS: dict[str, Any] = {"do_sample": False, "num_beams": 3, "no_repeat_ngram_size": 2}


@pytest.mark.parametrize(
    ("family", "options"),
    [
        *((family, GREEDY) for family in ("GPT-2", "Llama", "Qwen2", "T5", "Mamba", "Whisper")),
        ("Llama", SAMPLED),
        ("T5", BEAMS),
    ],
)
def test_generation_gives_the_hosts_tokens(family: str, options: dict[str, Any]) -> None:
    """Token by token, with a cache of keys and values or of states; the prompts are of different lengths."""
    model, inputs = made(family)
    there = copy.deepcopy(model.eval()).to("fl")
    prompt = {name: tensor for name, tensor in inputs.items() if name != "labels"}
    if "attention_mask" in prompt:
        prompt["attention_mask"] = prompt["attention_mask"].flip(1)  # padded on the left
    options = {**options, "max_new_tokens": 8, "pad_token_id": 0, "eos_token_id": None}
    sow(0)
    expected = model.generate(**prompt, **options)  # type: ignore[operator]
    sow(0)
    with flroute.enable(device="reference", fallback="error", default_device=False) as session:
        tokens = there.generate(**moved(prompt, "fl"), **options)  # type: ignore[operator]
    assert not session.fallbacks
    assert tokens.shape[1] >= 8
    assert torch.equal(tokens.cpu(), expected)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in {"Mixtral", "Whisper", "wav2vec2"}])
def test_a_family_in_bfloat16_is_no_further_from_the_truth_than_the_host(family: str) -> None:
    """Loss and gradients, the truth being float64. Dropout is off: each precision has draws of its own."""
    model, inputs = made(family)
    model = model.eval().bfloat16()
    precise, there = copy.deepcopy(model).double(), copy.deepcopy(model).to("fl")
    truth = _loss_and_gradients(precise, _in(torch.float64, inputs))
    host = _loss_and_gradients(model, _in(torch.bfloat16, inputs))
    with flroute.enable(device="reference", fallback="error", default_device=False) as session:
        ours = _loss_and_gradients(there, moved(_in(torch.bfloat16, inputs), "fl"))
    assert not session.fallbacks
    assert abs(ours[0] - truth[0]) <= 1.5 * abs(host[0] - truth[0]) + 1e-2 * abs(truth[0])
    errors = [(gradients.double() - truth[1]).norm() for gradients in (ours[1].cpu(), host[1])]
    assert errors[0] <= 1.5 * errors[1]


def _in(dtype: torch.dtype, inputs: Inputs) -> Inputs:
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in inputs.items()}


def _loss_and_gradients(model: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """The loss on the host, and every gradient in one vector."""
    loss, _ = outcome(model, inputs)
    loss.backward()
    assert loss.isfinite()
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return loss.detach().cpu(), torch.cat(gradients)
