"""What the host refuses, the device refuses: the same exception, as useful a message, and nothing written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from bad_inputs import GROUPS, Case, i, t
from torch.nn import functional

import flroute
from flroute.routing import native

HOST_WRITES_TOO = {
    "out inv": "aten::linalg_inv.out is a composite: it writes, then looks at what it wrote",
    "out cholesky": "likewise",
    "out solve": "likewise",
}
"""Calls that leave something written on the host and on the device."""

IN_SESSION_ONLY = dict.fromkeys(
    ("foreach_add_", "foreach second"), "without a session PyTorch itself splits the list into calls"
)
"""Calls that leave something written where no session sees them whole."""


def session(policy: str) -> AbstractContextManager[Any]:
    return flroute.enable(device="reference", fallback=policy, default_device=False)


def in_inference() -> AbstractContextManager[Any]:
    stack = ExitStack()
    stack.enter_context(session("error"))
    stack.enter_context(torch.inference_mode())
    return stack


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no fallback": lambda: session("error"),
    "fallback": lambda: session("allow"),
    "inference": in_inference,
    "no session": nullcontext,
    "after many good calls": lambda: session("error"),
}


def refusal(case: Case, tensors: list[torch.Tensor]) -> Exception | None:
    torch.manual_seed(0)
    try:
        case[0](*tensors)
    except Exception as error:  # whichever it is: its type is what the two devices are compared by
        return error
    return None


def told(error: Exception) -> str:
    return " ".join([str(error), *getattr(error, "__notes__", ())])


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\d+", text))


def same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Bit by bit."""
    return all(torch.equal(bits(a.cpu()), bits(b)) for a, b in zip(some, others, strict=True))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8) if tensor.numel() else tensor


def faults(name: str, case: Case, mode: str) -> Iterator[str]:
    """How the device's refusal differs from the host's."""
    on_host, on_device = [x.clone() for x in case[1]], [x.to("fl") for x in case[1]]
    expected, made = refusal(case, on_host), refusal(case, on_device)
    if expected is None:
        yield "the host takes it"
    elif type(made) is not type(expected):
        yield f"{made!r} instead of {expected!r}"
    elif made is not None and not numbers(str(expected)) <= numbers(told(made)):
        yield f"{told(made)!r} says less than {expected!r}"
    written, written_on_host = not same(on_device, case[1]), not same(on_host, case[1])
    allowed = name in HOST_WRITES_TOO or (name in IN_SESSION_ONLY and mode == "no session")
    if allowed != written or (allowed and not written_on_host):
        yield f"written on the device: {written}, on the host: {written_on_host}, expected: {allowed}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("group", GROUPS)
def test_refused_as_on_the_host(group: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mode == "after many good calls":
        monkeypatch.setattr(native, "MAX_CHECKED", 0)
    with MODES[mode]():
        found = [
            f"{name}: {fault}" for name, case in GROUPS[group].items() for fault in faults(name, case, mode)
        ]
    assert not found, "\n".join(found)


def test_the_error_says_which_call_it_was() -> None:
    with session("error"), pytest.raises(NotImplementedError, match="not implemented for 'Long'") as caught:
        t(2, 3, dtype=torch.int64).to("fl").softmax(1)
    assert "aten::_softmax on fl:0 with (torch.int64 [2, 3])" in told(caught.value)


def test_what_only_the_host_can_do_is_still_a_fallback() -> None:
    x = t(4, dtype=torch.complex64).to("fl")
    with session("error"), pytest.raises(flroute.FallbackError, match="would fall back to the host"):
        torch.sum(x, 0, out=torch.empty((), device="fl"))


def test_a_negative_size_leaves_the_tensor_as_it_is() -> None:
    """The host raises, too, but after it has given the tensor that size."""
    x = t(2, 3).to("fl")
    with pytest.raises(RuntimeError, match="negative dimension -3"):
        x.resize_(2, -3)
    assert torch.equal(x.cpu(), t(2, 3))


def test_asking_the_host_draws_no_random_numbers() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with session("error"), pytest.raises(RuntimeError):
        (-t(2)).to("fl").multinomial(1)
    assert torch.equal(torch.rand(2), expected)


def test_labels_of_ctc_that_are_no_class() -> None:
    """The host reads what lies behind its memory. What lies behind a sequence's length is never looked at, on either."""
    log_probs = t(4, 1, 3).log_softmax(2)
    padded = i(1, 2, 99).reshape(1, 3)
    expected = functional.ctc_loss(log_probs, padded, [4], [2])
    with session("error"):
        torch.testing.assert_close(
            functional.ctc_loss(log_probs.to("fl"), padded.to("fl"), [4], [2]).cpu(), expected
        )
        with pytest.raises(RuntimeError, match="target 99 is not one of the 3 classes"):
            functional.ctc_loss(log_probs.to("fl"), padded.to("fl"), [4], [3])


@pytest.mark.parametrize(
    "reduce", [torch.sum, torch.prod, torch.mean, torch.nansum, torch.cumsum, torch.cumprod]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_reduction_computes_in_the_dtype_of_out(reduce: Callable[..., Any], dtype: torch.dtype) -> None:
    x = t(5, 3)
    expected = reduce(x, 0, out=torch.empty(0, dtype=dtype))
    with session("error"):
        made = reduce(x.to("fl"), 0, out=torch.empty(0, dtype=dtype, device="fl"))
    assert made.dtype is dtype
    torch.testing.assert_close(made.cpu(), expected, rtol=1e-12 if dtype is torch.float64 else 1e-6, atol=0)


@contextmanager
def warning_every_time() -> Iterator[None]:
    """Otherwise PyTorch gives some of its warnings once per process."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


def test_a_complex_value_written_into_a_real_tensor_warns() -> None:
    value = torch.tensor([1 + 2j, 3])
    for x in (t(2), t(2).to("fl")):
        with (
            session("error"),
            warning_every_time(),
            pytest.warns(UserWarning, match="discards the imaginary"),
        ):
            x.copy_(value.to(x.device))
        assert x.tolist() == [1, 3]
