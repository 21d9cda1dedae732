"""From how many elements on a compiled kernel is faster than numpy's, as ``benchmarks/sizes.py`` measures it.

Below, the launch costs more than it saves: about a microsecond, as much as numpy takes for its simplest loops.
"""

from __future__ import annotations

MIN_NUMEL = {
    "relu": 16384, "sigmoid": 64, "silu": 64, "tanh": 64, "exp": 64, "log": 128, "rsqrt": 64, "gelu": 32,
    "gelu_backward": 32, "sigmoid_backward": 16384, "tanh_backward": 64, "silu_backward": 64, "threshold_backward": 64,
    "cast": 1, "add": 32, "mul": 32, "div": 32,
    "softmax": 128, "softmax_backward": 128,
    "sum_all": 64, "sum_dim": 4096, "mean_all": 32, "mean_dim": 32,
    "batch_norm": 64, "batch_norm_backward": 64, "group_norm": 8192, "group_norm_backward": 4096,
    "layer_norm": 32, "layer_norm_backward": 64, "rms_norm": 128, "rms_norm_backward": 128,
    "pow": 128, "cumsum": 256, "embedding_backward": 64, "nll_loss": 64, "nll_loss_backward": 128,
    "lerp_": 2048, "addcmul_": 2048, "addcdiv_": 4096, "adam_": 64, "dropout_backward": 16384,
}  # fmt: skip

FEWEST_SCORES = 1 << 15
"""Attention goes from head to head; below so many scores in one, numpy is faster with all heads at once."""
