"""What ``torch.autocast`` does with which op: PyTorch's own lists, as they are for its own devices (ATen/autocast_mode.h).

They hold what any supported release has; on a release that leaves an op alone, so does the device. Only overloads that take
the names of dimensions, which ended with PyTorch 2.11, are left out: what PyTorch passes to a kernel in Python has no names.
"""

from __future__ import annotations

LOWER_PRECISION = (
    "aten::_convolution",
    "aten::_convolution.deprecated",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_thnn_fused_gru_cell",
    "aten::_thnn_fused_lstm_cell",
    "aten::addbmm",
    "aten::addmm",
    "aten::addmv",
    "aten::addr",
    "aten::baddbmm",
    "aten::bmm",
    "aten::chain_matmul",
    "aten::conv1d",
    "aten::conv2d",
    "aten::conv3d",
    "aten::conv_tbc",
    "aten::conv_transpose1d",
    "aten::conv_transpose2d.input",
    "aten::conv_transpose3d.input",
    "aten::convolution",
    "aten::einsum",
    "aten::gru_cell",
    "aten::linalg_multi_dot",
    "aten::linalg_vecdot",
    "aten::linear",
    "aten::lstm_cell",
    "aten::matmul",
    "aten::mm",
    "aten::mv",
    "aten::prelu",
    "aten::rnn_relu_cell",
    "aten::rnn_tanh_cell",
    "aten::scaled_dot_product_attention",
)
"""Their floating-point arguments are cast to autocast's dtype."""

FLOAT32 = (
    "aten::_upsample_bicubic2d_aa",
    "aten::_upsample_bilinear2d_aa",
    "aten::_upsample_nearest_exact1d",
    "aten::_upsample_nearest_exact2d",
    "aten::_upsample_nearest_exact3d",
    "aten::acos",
    "aten::asin",
    "aten::binary_cross_entropy_with_logits",
    "aten::cdist",
    "aten::cosh",
    "aten::cosine_embedding_loss",
    "aten::cosine_similarity",
    "aten::dist",
    "aten::erfinv",
    "aten::exp",
    "aten::expm1",
    "aten::frobenius_norm.dim",
    "aten::group_norm",
    "aten::hinge_embedding_loss",
    "aten::huber_loss",
    "aten::kl_div",
    "aten::l1_loss",
    "aten::layer_norm",
    "aten::log",
    "aten::log10",
    "aten::log1p",
    "aten::log2",
    "aten::logsumexp",
    "aten::margin_ranking_loss",
    "aten::mse_loss",
    "aten::multi_margin_loss",
    "aten::multilabel_margin_loss",
    "aten::native_layer_norm",
    "aten::nll_loss",
    "aten::nll_loss2d",
    "aten::nuclear_norm",
    "aten::nuclear_norm.dim",
    "aten::pdist",
    "aten::poisson_nll_loss",
    "aten::pow.Scalar",
    "aten::pow.Tensor_Scalar",
    "aten::pow.Tensor_Tensor",
    "aten::reciprocal",
    "aten::renorm",
    "aten::rms_norm",
    "aten::rsqrt",
    "aten::sinh",
    "aten::smooth_l1_loss",
    "aten::soft_margin_loss",
    "aten::softplus",
    "aten::tan",
    "aten::triplet_margin_loss",
    "aten::upsample_bicubic2d",
    "aten::upsample_bilinear2d",
    "aten::upsample_linear1d",
    "aten::upsample_nearest1d",
    "aten::upsample_nearest2d",
    "aten::upsample_nearest3d",
    "aten::upsample_trilinear3d",
)
"""Their floating-point arguments are cast to float32."""

FLOAT32_RESULT = (
    "aten::cumprod",
    "aten::cumsum",
    "aten::linalg_matrix_norm",
    "aten::linalg_matrix_norm.str_ord",
    "aten::linalg_vector_norm",
    "aten::log_softmax.int",
    "aten::prod",
    "aten::prod.dim_int",
    "aten::softmax.int",
    "aten::sum",
    "aten::sum.dim_IntList",
)
"""They take a ``dtype``, which is float32 unless the caller says another one."""

FLOAT32_OVERLOAD = {
    "aten::norm.Scalar": "aten::norm.ScalarOpt_dtype",
    "aten::norm.ScalarOpt_dim": "aten::norm.ScalarOpt_dim_dtype",
}
"""They take no ``dtype``; the overload that does is called with float32."""

PROMOTED = (
    "aten::addcdiv",
    "aten::addcmul",
    "aten::atan2",
    "aten::bilinear",
    "aten::cross",
    "aten::dot",
    "aten::grid_sampler",
    "aten::index_put",
    "aten::scatter_add",
    "aten::tensordot",
    "aten::vdot",
)
"""Their arguments are cast to float32 if one of them has it, else to autocast's dtype."""

BANNED = {
    "aten::binary_cross_entropy": (
        "its logarithms overflow in half precision, and its input comes from a sigmoid that has lost them already. Leave the "
        "sigmoid out and use torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss"
    ),
}
"""They raise, for this reason."""

COMPOSITES = (
    "aten::_convolution_mode",
    "aten::_upsample_bicubic2d_aa.vec",
    "aten::_upsample_bilinear2d_aa.vec",
    "aten::_upsample_nearest_exact1d.vec",
    "aten::_upsample_nearest_exact2d.vec",
    "aten::_upsample_nearest_exact3d.vec",
    "aten::conv1d.padding",
    "aten::conv2d.padding",
    "aten::conv3d.padding",
    "aten::corrcoef",
    "aten::cov",
    "aten::cross_entropy_loss",
    "aten::float_power.Tensor_Scalar",
    "aten::float_power.Tensor_Tensor",
    "aten::gru.data",
    "aten::gru.input",
    "aten::inner",
    "aten::linalg_matrix_power",
    "aten::linalg_norm",
    "aten::linalg_norm.ord_str",
    "aten::linalg_pinv.atol_rtol_float",
    "aten::lstm.data",
    "aten::lstm.input",
    "aten::nanmean",
    "aten::nll_loss_nd",
    "aten::pairwise_distance",
    "aten::pinverse",
    "aten::rnn_relu.data",
    "aten::rnn_relu.input",
    "aten::rnn_tanh.data",
    "aten::rnn_tanh.input",
    "aten::special_log_softmax",
    "aten::special_softmax",
    "aten::square",
    "aten::sum_to_size",
    "aten::trapezoid.x",
    "aten::upsample_bicubic2d.vec",
    "aten::upsample_bilinear2d.vec",
    "aten::upsample_linear1d.vec",
    "aten::upsample_nearest1d.vec",
    "aten::upsample_nearest2d.vec",
    "aten::upsample_nearest3d.vec",
    "aten::upsample_trilinear3d.vec",
)
"""Ops that PyTorch splits into some of the above, which then are cast. In inference mode a session would see them first and take
them whole, when autocast no longer acts."""
