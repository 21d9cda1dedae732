"""Connectionist temporal classification: Graves et al. 2006, http://www.cs.toronto.edu/~graves/icml_2006.pdf.

The targets of a sequence, with blanks between and around them, are its states; alpha (equation 6) adds up the probability of
all paths that reach a state at a time, beta (equation 9) of all that go on from there. All in logarithms, in double precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.support import FLOAT_TYPES, Array, narrow, quiet, wide
from flroute.vendor import Unsupported, kernel

Lengths = Any  # a list of int, or an array


class _Paths:
    """States of every sequence of a batch, padded to the longest: arrays of shape (batch, states)."""

    def __init__(
        self, log_probs: Array, targets: Array, input_lengths: Lengths, target_lengths: Lengths, blank: int
    ) -> None:
        self.time, batch, classes = log_probs.shape
        self.inputs = np.asarray(input_lengths, dtype=np.int64).reshape(-1)
        self.lengths = np.asarray(target_lengths, dtype=np.int64).reshape(-1)
        _check(self, targets, batch, classes, blank)
        labels = _padded(targets, self.lengths)
        labels = np.where(
            np.arange(labels.shape[1]) < self.lengths[:, None], labels, blank
        )  # behind: anything
        _check_labels(labels, classes)
        self.states = np.full((batch, 2 * labels.shape[1] + 1), blank, np.int64)
        self.states[:, 1::2] = labels
        self.inside = np.arange(self.states.shape[1]) < 2 * self.lengths[:, None] + 1
        # From a label straight to the next one, unless that is the same.
        self.skips = np.zeros(self.states.shape, np.bool_)
        self.skips[:, 3::2] = labels[:, 1:] != labels[:, :-1]
        # (batch, time, states): the log probability of each state's class at each time
        by_sequence = wide(log_probs).transpose(1, 0, 2)
        self.emitted = np.take_along_axis(by_sequence, self.states[:, None, :], 2)
        self.emitted[np.broadcast_to(~self.inside[:, None, :], self.emitted.shape)] = -np.inf


def _check(paths: _Paths, targets: Array, batch: int, classes: int, blank: int) -> None:
    """Raises Unsupported: something that PyTorch refuses, in its own words."""
    lengths = (paths.inputs, paths.lengths)
    if any(len(values) != batch or values.min(initial=0) < 0 for values in lengths) or batch == 0:
        raise Unsupported("lengths that do not fit the batch")
    if not 0 <= blank < classes or paths.inputs.max() > paths.time or targets.ndim not in (1, 2):
        raise Unsupported("blank, input lengths or targets out of range")
    if targets.ndim == 1:
        fits = len(targets) == paths.lengths.sum()
    else:
        fits = targets.shape[0] == batch and targets.shape[1] >= paths.lengths.max()
    if not fits:
        raise Unsupported("targets that do not fit their lengths")


def _check_labels(labels: Array, classes: int) -> None:
    """The host reads whatever lies behind its memory for a label that is no class.

    Raises:
        RuntimeError: there is one.
    """
    wrong = labels[(labels < 0) | (labels >= classes)]
    if wrong.size:
        raise RuntimeError(f"ctc_loss: the target {wrong[0]} is not one of the {classes} classes")


def _padded(targets: Array, lengths: Array) -> Array:
    """The targets as (batch, longest); PyTorch also takes them one after another in one dimension."""
    longest = int(lengths.max())
    inside = np.arange(longest) < lengths[:, None]
    rows = np.zeros((len(lengths), longest), np.int64)
    rows[inside] = targets if targets.ndim == 1 else targets[:, :longest][inside]
    return rows


def _shifted(x: Array, by: int) -> Array:
    """``x`` moved along the states, -inf where nothing comes from."""
    result = np.full_like(x, -np.inf)
    if by > 0:
        result[:, by:] = x[:, :-by]
    else:
        result[:, :by] = x[:, -by:]
    return result


def _log_alpha(paths: _Paths) -> Array:
    alpha = np.full(paths.emitted.shape, -np.inf)
    if paths.time:
        alpha[:, 0, :2] = paths.emitted[:, 0, :2]
    for t in range(1, paths.time):
        before = alpha[:, t - 1]
        skipped = np.where(paths.skips, _shifted(before, 2), -np.inf)
        reached = np.logaddexp(np.logaddexp(before, _shifted(before, 1)), skipped)
        alpha[:, t] = reached + paths.emitted[:, t]
    return alpha


def _log_beta(paths: _Paths) -> Array:
    """Each sequence starts at its own last input, in its last label or the blank after it."""
    beta = np.full(paths.emitted.shape, -np.inf)
    last = 2 * paths.lengths[:, None]
    position = np.arange(paths.states.shape[1])
    is_end = (position == last) | ((position == last - 1) & (last > 0))
    after = np.full(paths.states.shape, -np.inf)
    for t in range(paths.time - 1, -1, -1):
        skipped = _shifted(np.where(paths.skips, after, -np.inf), -2)
        going_on = np.logaddexp(np.logaddexp(after, _shifted(after, -1)), skipped) + paths.emitted[:, t]
        ending = np.where(is_end, paths.emitted[:, t], -np.inf)
        ends_here = (paths.inputs == t + 1)[:, None]
        after = np.where(ends_here, ending, going_on)
        beta[:, t] = after
    return beta


def _dtypes_fit(log_probs: torch.Tensor, targets: torch.Tensor, *_: Any, **__: Any) -> bool | str:
    if log_probs.dtype not in FLOAT_TYPES or log_probs.ndim != 3:
        return f"log probabilities of {log_probs.dtype} in {log_probs.ndim} dimensions"
    fits = targets.dtype in (torch.int64, torch.int32)
    return True if fits else f"targets of {targets.dtype}"


def _dtypes_fit_backward(gradient: torch.Tensor, *rest: Any, **named: Any) -> bool | str:
    return _dtypes_fit(*rest, **named)


@kernel("aten::_ctc_loss", "aten::_ctc_loss.Tensor", when=_dtypes_fit)
@quiet
def ctc_loss(
    log_probs: Array,
    targets: Array,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Any, Any]:
    """Minus the log probability of all paths, and alpha; that an infinite loss becomes 0 is up to the caller."""
    paths = _Paths(log_probs, targets, input_lengths, target_lengths, blank)
    alpha = _log_alpha(paths)
    each = np.arange(len(paths.inputs))
    final = (
        alpha[each, np.maximum(paths.inputs - 1, 0)] if paths.time else np.full(paths.states.shape, -np.inf)
    )
    last = 2 * paths.lengths
    label = np.where(paths.lengths > 0, final[each, np.maximum(last - 1, 0)], -np.inf)
    log_likelihood = np.logaddexp(final[each, last], label)
    without_input = np.where(paths.lengths > 0, -np.inf, 0.0)
    loss = -np.where(paths.inputs > 0, log_likelihood, without_input)
    return narrow(loss, log_probs), narrow(alpha, log_probs)


@kernel("aten::_ctc_loss_backward", "aten::_ctc_loss_backward.Tensor", when=_dtypes_fit_backward)
@quiet
def ctc_loss_backward(
    grad: Array,
    log_probs: Array,
    targets: Array,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    neg_log_likelihood: Array,
    log_alpha: Array,
    blank: int,
    zero_infinity: bool = False,
) -> Any:
    """y - (sum of alpha beta over the states of a class) / (p y): equation 16, for the logarithm of y."""
    paths = _Paths(log_probs, targets, input_lengths, target_lengths, blank)
    joint = _log_alpha(paths) + _log_beta(paths)
    largest = np.max(joint, axis=2, keepdims=True, initial=-1e300)
    of_class = np.equal(paths.states[:, :, None], np.arange(log_probs.shape[2])).astype(np.float64)
    summed = np.log(np.exp(joint - largest) @ of_class) + largest
    log_y = wide(log_probs).transpose(1, 0, 2)
    loss = wide(neg_log_likelihood)[:, None, None]
    result = (np.exp(log_y) - np.exp(summed + loss - log_y)) * wide(grad)[:, None, None]
    result[np.arange(paths.time) >= paths.inputs[:, None]] = 0
    if zero_infinity:
        result[np.isposinf(neg_log_likelihood)] = 0
    return np.ascontiguousarray(narrow(result, log_probs).transpose(1, 0, 2))
