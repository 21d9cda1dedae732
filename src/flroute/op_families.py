"""The families of PyTorch's ops, by which coverage is shown: the one place that says which op belongs where."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache

FAMILIES: dict[str, str] = {
    "nested tensors": "*nested* *padded_dense* *to_padded*",
    "sparse tensors": (
        "*sparse* _nnz _dimI _dimV _spdiags *coalesce* ccol_* col_indices* crow_* row_* indices* "
        "_indices* values* _values* _validate_* _convert_indices_* dense_dim hspmm sspaddmm smm _spsolve "
        "_cslt_* to_dense* _to_dense"
    ),
    "quantized tensors": (
        "*quantize* *quantized* *fake_quant *_quant_* *q_per_channel* q_scale q_zero_point qscheme "
        "int_repr fbgemm_* _choose_qparams* *qparams* *obs_fq_helper* _saturate_weight* *int4pack* "
        "*int8pack* _mixed_dtypes_linear _wrapped_* _dyn_quant*"
    ),
    "kernels of other backends": (
        "*cudnn* *miopen* *mkldnn* *mps* _nnpack* *nnpack* *triton* *cufft* is_vulkan_available *_xla_*"
    ),
    "transforms and bookkeeping": (
        "_add_batch_dim _remove_batch_dim _make_dual* _unpack_dual _fw_primal* _test_* _foobar _assert_* "
        "*functional_assert* *sym_constrain* sym_* _print _make_dep_token _autocast_* _backward data "
        "output_nr is_leaf requires_grad retain* _version set_data record_stream get_gradients "
        "infinitely_* _amp_* _has_* _debug_* _propagate_* _rowwise_prune _resize_output _dim_arange "
        "_is_zerotensor _shape_as_tensor"
    ),
    "lists of tensors and optimizers": "_foreach_* _fused_adam* _fused_sgd _fused_adagrad",
    "special functions": (
        "special_* erf* lgamma digamma polygamma mvlgamma igamma* i0 _standard_gamma_grad _dirichlet_grad"
    ),
    "Fourier transforms": "fft_* _fft_* stft istft",
    "linear algebra": (
        "linalg_* _linalg_* *cholesky* geqrf ormqr orgqr lu_* _lu_* det logdet slogdet inverse pinverse "
        "qr svd matrix_* triangular_solve kron cross trace trace_backward chain_matmul nuclear_norm "
        "frobenius_norm vander _compute_linear_*"
    ),
    "matrix products": (
        "*mm *mm_* mv addmv addr ger dot vdot inner outer matmul* bilinear _trilinear linear "
        "linear_backward einsum tensordot addbmm _addmm_activation _scaled_mm* _grouped_mm "
        "_scaled_grouped_mm*"
    ),
    "attention": "*attention* _transform_bias* _transformer_encoder* _fused_sdp_choice _fill_mem_eff*",
    "convolution": "*conv* im2col col2im",
    "pooling": "*pool*",
    "normalization": (
        "*batch_norm* *layer_norm* *group_norm* instance_norm *rms_norm* *weight_norm* *local_response*"
    ),
    "embeddings": "embedding* _embedding*",
    "recurrent layers": (
        "*lstm* *gru* rnn_* *rnn_* *_packed_sequence* *_padded_sequence* pad_sequence _thnn_*"
    ),
    "padding and resampling": (
        "*pad *pad?d* *_pad_* _pad_* *pad_nd upsample_* _upsample_* *grid_sample* *affine_grid* pixel_* "
        "*channel_shuffle"
    ),
    "losses": (
        "*_loss *_loss_* *_loss?d* binary_cross_entropy* kl_div *_loss_forward pairwise_distance "
        "cosine_similarity cdist *cdist* pdist _pdist* dist _euclidean_dist"
    ),
    "softmax": "*softmax*",
    "activations": (
        "relu* elu* celu selu gelu* silu* mish* *sigmoid* *hardsh* hardtanh* hardswish* leaky_relu* glu* "
        "prelu _prelu* rrelu* softplus* softshrink* threshold* tanh_backward logit* _add_relu"
    ),
    "random numbers": (
        "rand* bernoulli* *normal* uniform* exponential* geometric* cauchy* log_normal* multinomial* "
        "poisson* binomial* *dropout* _sample_dirichlet _standard_gamma random* _philox* _sobol*"
    ),
    "new tensors": (
        "empty* full* ones* zeros* new_* arange range linspace logspace eye *_window scalar_tensor "
        "tri?_indices complex polar from_file _efficientzero* _new_zeros* cartesian_prod combinations "
        "meshgrid"
    ),
    "sorting and sets": (
        "sort argsort msort topk kthvalue median nanmedian mode *unique* isin searchsorted bucketize "
        "histc *histogram* bincount quantile nanquantile"
    ),
    "scans": "cum* _cum* logcumsumexp _logcumsumexp diff trapz trapezoid cumulative_*",
    "indexing": (
        "*index* gather* scatter* masked_* _masked* take* put* nonzero* where argwhere one_hot *_scatter "
        "select_backward slice_backward diagonal_backward count_nonzero value_selecting*"
    ),
    "reductions": (
        "sum* nansum mean nanmean prod std* var* *norm *norm_* max min amax amin *aminmax argmax argmin "
        "all any logsumexp *_powsum segment_reduce *segment_reduce* hash_tensor equal _is_any_true "
        "_is_all_true allclose norm_except_dim cov corrcoef is_nonzero"
    ),
    "copies and casts": (
        "copy copy_* _copy* clone to _to_* _cast_* type_as contiguous lift* pin_memory _pin_memory "
        "is_pinned fill* zero item _local_scalar* chalf *_copy _lazy_clone _conj_physical conj_physical "
        "resolve_* real imag"
    ),
    "joining and shapes": (
        "cat concat* stack _stack hstack vstack dstack row_stack column_stack block_diag *split* chunk "
        "unsafe_chunk _chunk_cat tensor_split repeat* tile flip* roll rot90 *reshape* *view* *permute* "
        "*transpose* swap* move* squeeze* unsqueeze* expand* broadcast* flatten* unflatten* ravel unfold* "
        "diag* tri? atleast_* narrow* select slice* as_strided* alias* detach* unbind t mT mH adjoint "
        "matrix_H numpy_T resize* set size stride dim numel storage_offset is_* can_cast promote_types "
        "result_type conj _conj _neg_view* get_device"
    ),
    "comparison and logic": (
        "eq ne lt le gt ge equal not_equal less* greater* logical_* bitwise_* __* is* maximum minimum "
        "fmax fmin clamp* clip heaviside sign* sgn"
    ),
    "element by element": "*",
}
"""Patterns of op names without namespace, overload and the underscore of an in-place op. The first family that fits counts."""


@cache
def family_of(op: str) -> str:
    """The family of ``aten::add_.Tensor``.

    Example:
        >>> family_of("aten::add_.Tensor"), family_of("aten::_softmax.out")
        ('element by element', 'softmax')
    """
    name = op.partition("::")[2].partition(".")[0]
    name = name if name.startswith("__") else name.rstrip("_")
    return next(
        family
        for family, patterns in FAMILIES.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns.split())
    )
