from __future__ import annotations

import pytest
import torch
from against_host import FLOATS, given, run
from hypothesis import strategies as st

from flroute.vendor import Unsupported

TIME, BATCH, CLASSES, LONGEST = 12, 4, 6, 4


@given(seed=st.integers(0, 1000), dtype=st.sampled_from(FLOATS), target_dtype=st.sampled_from([torch.int64, torch.int32]),
       blank=st.sampled_from([0, 5]), flat=st.booleans(), impossible=st.booleans())  # fmt: skip
def test_ctc(
    seed: int, dtype: torch.dtype, target_dtype: torch.dtype, blank: int, flat: bool, impossible: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    log_probs = (
        torch.randn(TIME, BATCH, CLASSES, generator=generator, dtype=torch.float64).log_softmax(-1).to(dtype)
    )
    target_lengths = torch.randint(0, LONGEST + 1, (BATCH,), generator=generator).tolist()
    shortest = 1 if impossible else 2 * LONGEST + 1
    input_lengths = torch.randint(shortest, TIME + 1, (BATCH,), generator=generator).tolist()
    targets = torch.randint(
        1 if blank == 0 else 0, CLASSES - (blank != 0), (BATCH, LONGEST), generator=generator
    )
    if flat:
        targets = torch.cat([row[:length] for row, length in zip(targets, target_lengths, strict=True)])
    args = (log_probs, targets.to(target_dtype), input_lengths, target_lengths, blank)
    expected, host_alpha = torch.ops.aten._ctc_loss(*args)
    loss, alpha = (torch.from_numpy(part) for part in run("aten::_ctc_loss", *args))
    torch.testing.assert_close(loss, expected)
    assert alpha.shape == host_alpha.shape
    gradient = torch.rand(BATCH, generator=generator, dtype=torch.float64).to(dtype)
    for zero_infinity in (False, True):
        rest = (*args[:-1], expected, host_alpha, blank, zero_infinity)
        made = run("aten::_ctc_loss_backward", gradient, *rest)
        wanted = torch.ops.aten._ctc_loss_backward(gradient, *rest)
        torch.testing.assert_close(torch.from_numpy(made), wanted, equal_nan=True, rtol=1e-4, atol=1e-6)


def test_lengths_in_tensors() -> None:
    log_probs = torch.randn(TIME, BATCH, CLASSES).log_softmax(-1)
    targets = torch.randint(1, CLASSES, (BATCH, LONGEST))
    inputs, lengths = torch.full((BATCH,), TIME), torch.tensor([0, 1, 4, 2])
    expected, _ = torch.ops.aten._ctc_loss(log_probs, targets, inputs, lengths)
    loss, _ = run("aten::_ctc_loss.Tensor", log_probs, targets, inputs, lengths)
    torch.testing.assert_close(torch.from_numpy(loss), expected)


@pytest.mark.parametrize(("inputs", "lengths"), [([TIME + 1] * BATCH, [1] * BATCH), ([TIME] * BATCH, [5] * BATCH),
                                                 ([TIME] * (BATCH - 1), [1] * BATCH)])  # fmt: skip
def test_what_does_not_fit_is_left_to_the_host(inputs: list[int], lengths: list[int]) -> None:
    with pytest.raises(Unsupported):
        run(
            "aten::_ctc_loss",
            torch.randn(TIME, BATCH, CLASSES),
            torch.ones(BATCH, LONGEST).long(),
            inputs,
            lengths,
        )
