"""``torch.autocast("fl")``: PyTorch's lists, the casts, and the casts of weights that are kept."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.utils
import torch.utils.checkpoint
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.testing._internal.autocast_test_lists import AutocastTestLists

import flroute
from flroute.device import autocast as module
from flroute.device import autocast_ops
from flroute.torch_compat import all_op_names, fake_tensors, has_kernel
from support import decisions_of

LOWER = (torch.bfloat16, torch.float16)
DEVICE, OPAQUE = torch.device("fl:0"), torch.device("fl:2")


def kept_casts() -> Any:
    return module._thread.casts


def autocast(dtype: torch.dtype = torch.bfloat16, **options: Any) -> torch.autocast:
    return torch.autocast("fl", dtype=dtype, **options)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


# The lists are PyTorch's --------------------------------------------------------------------------------------------

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"


def in_header(category: str) -> str:
    (body,) = re.findall(rf"#define AT_FORALL_{category}\(_\)((?:.*\\\n)*.*\n)", HEADER.read_text("utf-8"))
    return str(body)


def listed_in_header(category: str) -> set[str]:
    names = {
        "aten::" + ".".join(part.strip() for part in entry.split(","))
        for entry in re.findall(r"_\(([^)]*)\)", in_header(category))
    }
    return {name for name in names if "dimname" not in name.lower()}


def registered(names: Any, key: str = "AutocastXPU") -> set[str]:
    """Those of ``names`` that this release knows at ``key``."""
    return {name for name in {*names} & {*all_op_names()} if has_kernel(name, key)}


@pytest.mark.parametrize(
    ("category", "ours"),
    [
        ("LOWER_PRECISION_FP", autocast_ops.LOWER_PRECISION),
        ("FP32", autocast_ops.FLOAT32),
        ("FP32_SET_OPT_DTYPE", autocast_ops.FLOAT32_RESULT),
        ("PROMOTE", autocast_ops.PROMOTED),
    ],
)
def test_the_lists_are_those_of_the_installed_release(category: str, ours: tuple[str, ...]) -> None:
    assert listed_in_header(category) == registered(ours)


def test_overloads_with_a_dtype_are_those_of_the_installed_release() -> None:
    body = in_header("DIFFERENT_REDISPATCH_SIGNATURE")
    theirs = {f"aten::{name}" for name in re.findall(r'"([\w.]+)"', body) if "names" not in name}
    assert theirs == set(autocast_ops.FLOAT32_OVERLOAD)


ALL = (
    *autocast_ops.LOWER_PRECISION,
    *autocast_ops.FLOAT32,
    *autocast_ops.FLOAT32_RESULT,
    *autocast_ops.FLOAT32_OVERLOAD,
    *autocast_ops.PROMOTED,
    *autocast_ops.BANNED,
)


def test_every_op_that_xpu_casts_is_in_one_list() -> None:
    theirs = registered(all_op_names())
    assert {name for name in theirs if "dimname" not in name.lower() and ".names_" not in name} == registered(
        ALL
    )
    assert len(ALL) == len(set(ALL))


def test_every_listed_op_is_registered() -> None:
    expected = registered(ALL) | registered(autocast_ops.COMPOSITES, "CompositeImplicitAutograd")
    assert registered(all_op_names(), "AutocastPrivateUse1") == expected


def test_composites_are_in_no_other_list_and_split_by_pytorch() -> None:
    assert set(autocast_ops.COMPOSITES).isdisjoint(ALL)
    assert registered(autocast_ops.COMPOSITES, "CompositeImplicitAutograd") == set(autocast_ops.COMPOSITES)


# What PyTorch's own tests of these lists ask ---------------------------------------------------------------------------


def cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, list | tuple):
        return type(value)(cast(item, dtype) for item in value)
    return value


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, list | tuple):
        return all(map(same, one, other))
    return bool(one == other)


MODULES = {"torch": torch, "nn": torch._C._nn, "linalg": torch._C._linalg, "methods": None}
NAMES = [
    f"{family}_{kind}"
    for family in MODULES
    for kind in ("fp16", "fp32", "need_autocast_promote", "expect_builtin_promote")
    if hasattr(AutocastTestLists("cpu"), f"{family}_{kind}")
]
# There is no cudnn here; the case of einsum passes each letter of its equation as an argument.
LEFT_OUT = ("cudnn_convolution", "cudnn_convolution_transpose", "einsum")
CASES = [
    pytest.param(name, i, id=f"{name}-{case[0]}-{i}")
    for name in NAMES
    for i, case in enumerate(getattr(AutocastTestLists("cpu"), name))
    if case[0] not in LEFT_OUT
]


@pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated", "ignore:Using torch.cross without")
@pytest.mark.parametrize("lower", LOWER, ids=str)
@pytest.mark.parametrize(("name", "number"), CASES)
def test_pytorchs_own_cases(name: str, number: int, lower: torch.dtype) -> None:
    """The result is that of the op outside autocast, with arguments cast by hand, bit for bit."""
    family, _, kind = name.partition("_")
    op, args, *rest = getattr(AutocastTestLists("fl:0"), name)[number]
    kwargs = next((extra for extra in rest if isinstance(extra, dict)), {})
    runs_in = lower if kind == "fp16" else torch.float32
    gives = next((extra for extra in rest if isinstance(extra, torch.dtype)), runs_in)
    variants: list[Callable[..., Any]] = []
    if (module := MODULES[family]) is not None and hasattr(module, op):
        variants.append(getattr(module, op))
    if hasattr(torch.Tensor, op) and isinstance(args[0], torch.Tensor):
        variants.append(getattr(torch.Tensor, op))
    assert variants
    for call in variants:
        with autocast(lower):
            found = call(*args, **kwargs)
            with autocast(enabled=False):
                expected = call(*cast(args, runs_in), **kwargs)
        assert same(found, expected)
        if isinstance(found, torch.Tensor):
            assert found.dtype == gives


@pytest.mark.parametrize("call", [functional.binary_cross_entropy, nn.BCELoss()], ids=["function", "module"])
def test_what_is_banned_says_what_to_use(call: Any) -> None:
    x = torch.rand(3, device="fl")
    with (
        autocast(),
        pytest.raises(flroute.AutocastError, match=r"binary_cross_entropy_with_logits or torch\.nn\.BCEW"),
    ):
        call(x, x)
    assert call(x, x).dtype == torch.float32


@pytest.mark.parametrize("lower", LOWER, ids=str)
def test_norms_without_a_dtype(lower: torch.dtype) -> None:
    x = torch.randn(3, 4, dtype=lower, device="fl")
    expected = x.float()
    with autocast(lower):
        for found, right in (
            (torch.ops.aten.norm.Scalar(x), expected.norm()),
            (torch.ops.aten.norm.Scalar(x, 1), expected.norm(1)),
            (torch.ops.aten.norm.ScalarOpt_dim(x, 2, [1]), expected.norm(dim=1)),
            (torch.ops.aten.norm.ScalarOpt_dim(x, 2, [1], True), expected.norm(dim=1, keepdim=True)),
            (torch.ops.aten.norm.ScalarOpt_dim(x, None, [0]), expected.norm(dim=0)),
        ):
            assert found.dtype == torch.float32
            torch.testing.assert_close(found, right, rtol=1e-6, atol=0)
        assert torch.ops.aten.norm.Scalar(x.double()).dtype == torch.float64


@given(
    dtypes=st.lists(
        st.sampled_from([torch.bfloat16, torch.float32, torch.float64, torch.int64]), min_size=2, max_size=2
    ),
    size=st.integers(1, 5),
)
def test_only_what_is_eligible_is_cast(dtypes: list[torch.dtype], size: int) -> None:
    a, b = (torch.ones(size, size, device="fl").to(dtype) for dtype in dtypes)
    floating = {dtype for dtype in dtypes if dtype.is_floating_point and dtype is not torch.float64}
    rest = set(dtypes) - floating
    with autocast():
        if floating and rest:  # as outside autocast: a product takes one dtype
            with pytest.raises(RuntimeError, match="dtype"):
                a @ b
        elif len(rest) < 2:
            assert (a @ b).dtype == (torch.bfloat16 if floating else dtypes[0])


def test_a_dtype_that_the_caller_says_is_kept() -> None:
    x = torch.ones(3, dtype=torch.bfloat16, device="fl")
    with autocast():
        assert x.sum().dtype == torch.float32
        assert x.sum(dtype=torch.bfloat16).dtype == torch.bfloat16
        assert x.softmax(0, torch.float64).dtype == torch.float64
        assert x.cumsum(0, dtype=None).dtype == torch.float32
        assert x.long().sum().dtype == torch.int64


def test_promotion_of_a_third_dtype_is_refused() -> None:
    a, b = (torch.ones(3, dtype=dtype, device="fl") for dtype in LOWER)
    with (
        autocast(),
        pytest.raises(
            flroute.AutocastError, match=r"aten::addcmul .*dtype=torch\.bfloat16.* not torch\.float16"
        ),
    ):
        torch.addcmul(a, a, b)
    with autocast():
        assert torch.addcmul(a, a, b.float()).dtype == torch.float32


def test_host_tensors_have_an_autocast_of_their_own() -> None:
    a = torch.ones(2, 2)
    with autocast():
        assert (a @ a).dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert (a @ a).dtype == torch.bfloat16
            assert (a.to("fl") @ a.to("fl")).dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (a.to("fl") @ a.to("fl")).dtype == torch.float32


def test_a_number_on_the_host_does_not_decide() -> None:
    x = torch.ones(3, dtype=torch.bfloat16, device="fl")
    with autocast():
        assert torch.addcmul(x, x, torch.tensor(2.0)).dtype == torch.bfloat16
        assert torch.addcmul(x, x, torch.tensor(2.0, dtype=torch.float16)).tolist() == [3, 3, 3]
        assert torch.addcmul(x, x, torch.tensor(2.0, device="fl")).dtype == torch.float32


# Inside sessions, modes and compilers ------------------------------------------------------------------------------


def conv(x: torch.Tensor) -> torch.Tensor:
    return functional.conv1d(x, torch.ones(2, x.shape[1], 3, device=x.device), padding="same")


COMPOSITE_CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "lstm": lambda x: nn.LSTM(4, 3).to(x.device)(x)[0],
    "gru": lambda x: nn.GRU(4, 3).to(x.device)(x)[0],
    "rnn": lambda x: nn.RNN(4, 3).to(x.device)(x)[0],
    "packed lstm": lambda x: (
        nn.LSTM(4, 3).to(x.device)(nn.utils.rnn.pack_padded_sequence(x, [3, 2, 1]))[0].data
    ),
    "attention": lambda x: nn.MultiheadAttention(4, 2).to(x.device)(x, x, x)[0],
    "encoder": lambda x: nn.TransformerEncoderLayer(4, 2, 8, 0.0).to(x.device).eval()(x),
    "conv1d same": conv,
    "cross_entropy": lambda x: functional.cross_entropy(
        x[0].bfloat16(), torch.tensor([0, 1, 2], device=x.device)
    ),
    "nll_loss": lambda x: functional.nll_loss(
        x.bfloat16(), torch.zeros(3, 4, dtype=torch.long, device=x.device)
    ),
    "interpolate": lambda x: functional.interpolate(x.bfloat16(), scale_factor=2, mode="linear"),
    "nearest": lambda x: functional.interpolate(x.bfloat16(), scale_factor=2),
    "inner": lambda x: torch.inner(x, x),
    "linalg.norm": lambda x: torch.linalg.norm(x.bfloat16(), dim=1),
    "matrix_power": lambda x: torch.linalg.matrix_power(x[:, :, :3], 3),
    "square": lambda x: x.bfloat16().square(),
    "pairwise_distance": lambda x: functional.pairwise_distance(x.bfloat16(), 2 * x.bfloat16()),
    "special.softmax": lambda x: torch.special.softmax(x.bfloat16(), 1),
    "nanmean": lambda x: x.bfloat16().nanmean(),
}


@pytest.mark.parametrize("name", COMPOSITE_CALLS)
def test_a_session_in_inference_mode_casts_like_training(name: str) -> None:
    call, x = COMPOSITE_CALLS[name], torch.randn(3, 3, 4)

    def run() -> torch.Tensor:
        torch.manual_seed(0)
        with autocast():
            result: torch.Tensor = call(x.to("fl"))
        return result

    expected = run()
    with flroute.enable("fl:0", fallback="allow"):
        training = run()
        with torch.inference_mode():
            inference = run()
    with torch.no_grad():
        without_grad = run()
    for found in (training, inference, without_grad):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found.cpu(), expected.detach().cpu(), rtol=0, atol=0)


def test_casts_are_ops_that_a_session_counts() -> None:
    layer = nn.Linear(3, 3).to("fl")
    with flroute.enable("fl:0", fallback="error") as session, autocast():
        layer(layer(torch.ones(2, 3)))
    casts = decisions_of(session, "aten::_to_copy")
    assert (
        sum(d.calls for d in casts) == 3
    )  # the input, the weight and the bias; the second layer finds all three cast
    assert {(d.op, str(d.route)) for d in session.decisions} >= {("aten::addmm", "native")}


def test_memory_that_the_host_cannot_read() -> None:
    layer = nn.Linear(3, 3).to(OPAQUE)
    with autocast(torch.float16):
        y = layer(torch.ones(2, 3, device=OPAQUE))
    y.float().sum().backward()
    assert (y.dtype, y.device) == (torch.float16, OPAQUE)
    assert layer.weight.grad is not None
    assert layer.weight.grad.cpu().tolist() == [[2.0] * 3] * 3


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("inside", [True, False], ids=["autocast inside", "autocast around"])
@pytest.mark.parametrize("lower", LOWER, ids=str)
def test_compiled_functions_compute_the_same(backend: str, inside: bool, lower: torch.dtype) -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)).to("fl")
    x, target = torch.randn(5, 4).to("fl"), torch.tensor([0, 1, 2, 0, 1]).to("fl")

    def casting(x: torch.Tensor) -> torch.Tensor:
        with autocast(lower):
            return functional.cross_entropy(model(x), target)

    def plain(x: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(x), target)

    def gradients(function: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
        model.zero_grad()
        with autocast(lower, enabled=not inside):
            loss = function(x)
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    function = casting if inside else plain
    expected = gradients(function)
    found = gradients(torch.compile(function, backend=backend, fullgraph=True))
    assert len(found) == 7
    assert all(map(same, found, expected))


def test_what_dynamo_leaves_eager_costs_no_compilation(weight: torch.Tensor) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):  # Dynamo gives up on a break inside a loop, and looks at each frame beneath
            x = torch.mm(x, weight)
            torch._dynamo.graph_break()
        return x.sum()

    def frames(enabled: bool) -> int:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        with autocast(enabled=enabled):
            torch.compile(broken, backend="eager")(torch.ones(2, 4, device="fl"))
        return int(torch._dynamo.utils.counters["frames"]["total"])

    assert frames(enabled=True) <= frames(enabled=False)


def test_tensors_without_data() -> None:
    with fake_tensors(), autocast():
        x = torch.empty(3, 3, device="fl", requires_grad=True)
        y = x @ x
        assert (y.dtype, y.device.type, y.requires_grad) == (torch.bfloat16, "fl", True)
        assert not kept_casts()


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_casts_again(reentrant: bool) -> None:
    layers = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)).to("fl")
    x = torch.randn(2, 4).to("fl").requires_grad_()
    seen: list[torch.dtype] = []
    layers[0].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))

    def gradients(call: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
        layers.zero_grad()
        x.grad = None
        with autocast():
            y = call(x)
        y.float().sum().backward()
        return [
            x.grad,
            *(parameter.grad.clone() for parameter in layers.parameters() if parameter.grad is not None),
        ]

    expected = gradients(layers)
    found = gradients(lambda x: torch.utils.checkpoint.checkpoint(layers, x, use_reentrant=reentrant))
    assert len(found) == 5
    assert all(map(same, found, expected))
    assert seen == [torch.bfloat16] * 3  # once without checkpointing, twice with it


def test_exported_programs_keep_autocast() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with autocast():
                y: torch.Tensor = self.layer(x)
                return y

    model, x = Model().to("fl"), torch.ones(2, 3, device="fl")
    program = torch.export.export(model, (x,))
    assert same(program.module()(x), model(x))


def test_function_transforms() -> None:
    w, x = torch.randn(3, 3).to("fl"), torch.randn(2, 3).to("fl")

    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        with autocast():
            return (x @ w).sum()

    gradient = torch.func.grad(loss)(w.requires_grad_(), x)
    w.grad = None
    loss(w, x).backward()
    assert w.grad is not None
    assert same(gradient, w.grad)
    each = torch.func.vmap(loss, in_dims=(None, 0))(w.detach(), x)
    assert (each.shape, each.dtype) == ((2,), torch.float32)


# Nesting, states and custom functions ---------------------------------------------------------------------------------


def test_nesting() -> None:
    a = torch.ones(2, 2, device="fl")
    with autocast(torch.float16):
        assert (a @ a).dtype == torch.float16
        with autocast(enabled=False):
            assert (a @ a).dtype == torch.float32
            with autocast(torch.bfloat16):
                assert (a @ a).dtype == torch.bfloat16
            assert (a @ a).dtype == torch.float32
        with autocast(torch.bfloat16):
            assert (a @ a).dtype == torch.bfloat16
        assert (a @ a).dtype == torch.float16
    assert (a @ a).dtype == torch.float32


def test_autocast_ends_with_an_error() -> None:
    a = torch.ones(2, 2, device="fl")
    with pytest.raises(RuntimeError, match="shape"), autocast():
        a @ torch.ones(3, 3, device="fl")
    assert not torch.is_autocast_enabled("fl")
    assert (a @ a).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32], ids=str)
def test_a_dtype_that_autocast_does_not_take(dtype: torch.dtype) -> None:
    a = torch.ones(2, 2, device="fl")
    with pytest.warns(
        UserWarning, match=r"fl Autocast only supports dtypes of torch\.float16, torch\.bfloat16"
    ):
        context = autocast(dtype)
    with context:
        assert (a @ a).dtype == torch.float32


class Product(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="fl")
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        assert torch.is_autocast_enabled("fl")
        ctx.save_for_backward(a, b)
        return a.mm(b)

    @staticmethod
    @torch.amp.custom_bwd(device_type="fl")
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        assert torch.is_autocast_enabled("fl")
        a, b = ctx.saved_tensors
        left, right = grad.mm(b.t()), a.t().mm(grad)
        assert left.dtype == right.dtype == torch.bfloat16
        return left, right


class InFloat32(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="fl", cast_inputs=torch.float32)
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        assert not torch.is_autocast_enabled("fl")
        ctx.save_for_backward(a)
        return a @ a

    @staticmethod
    @torch.amp.custom_bwd(device_type="fl")
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (a,) = ctx.saved_tensors
        assert not torch.is_autocast_enabled("fl")
        assert a.dtype == grad.dtype == torch.float32
        return grad @ a.t() + a.t() @ grad


def test_functions_with_a_backward_of_their_own() -> None:
    a, b = (torch.randn(3, 3).to("fl").requires_grad_() for _ in range(2))
    with autocast():
        y = Product.apply(a, b)
        z = InFloat32.apply(y)
    assert (y.dtype, z.dtype) == (torch.bfloat16, torch.float32)
    z.sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    assert a.grad.dtype == b.grad.dtype == torch.float32
    assert a.grad.abs().sum() > 0


# Casts of weights -------------------------------------------------------------------------------------------------


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.randn(4, 4).to("fl").requires_grad_()


@pytest.fixture
def casts(weight: torch.Tensor) -> Iterator[Callable[[], int]]:
    """How many casts there were since the weight was made."""
    with flroute.enable("fl:0", fallback="allow", default_device=False) as session:
        yield lambda: sum(d.calls for d in decisions_of(session, "aten::_to_copy"))


def product(weight: torch.Tensor) -> torch.Tensor:
    return torch.ones(1, 4, device="fl", dtype=torch.bfloat16) @ weight


def test_a_weight_is_cast_once_until_the_outermost_autocast_ends(
    casts: Callable[[], int], weight: torch.Tensor
) -> None:
    with autocast():
        product(weight)
        with autocast():
            product(weight)
        with autocast(enabled=False):
            pass
        product(weight)
        assert casts() == 1
    with autocast():
        product(weight)
    assert casts() == 2


def test_the_cache_can_be_turned_off(casts: Callable[[], int], weight: torch.Tensor) -> None:
    with autocast(cache_enabled=False):
        product(weight)
        product(weight)
    assert casts() == 2


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
def test_only_casts_of_trained_leaves_are_kept(
    grad: bool, casts: Callable[[], int], weight: torch.Tensor
) -> None:
    fixed = weight.detach().clone()
    for tensor in (fixed, weight * 1, weight[:], fixed[:].requires_grad_()):
        with autocast(), torch.set_grad_enabled(grad):
            before = casts()
            product(tensor)
            product(tensor)
            assert casts() == before + 2


def test_memory_of_casts_is_given_back(weight: torch.Tensor) -> None:
    before = torch.fl.memory_allocated()
    with autocast():
        product(weight)
        assert torch.fl.memory_allocated() >= before + weight.numel() * 2
    assert torch.fl.memory_allocated() == before


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_a_cast_made_without_gradients_does_not_swallow_them(without: Any, weight: torch.Tensor) -> None:
    with autocast():
        with without():
            product(weight)
        product(weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.unique().tolist() == [1]


def test_gradients_add_up_over_one_cast(weight: torch.Tensor) -> None:
    with autocast():
        (product(weight) + product(weight)).sum().backward()
        product(weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    assert weight.grad.unique().tolist() == [3]


def written(weight: torch.Tensor) -> None:
    with torch.no_grad():
        weight.fill_(2)


def given_other_data(weight: torch.Tensor) -> None:
    weight.data = torch.full((4, 4), 2.0, device=weight.device)


def stepped(weight: torch.Tensor) -> None:
    weight.grad = weight.detach() - 2
    torch.optim.SGD([weight], lr=1, foreach=True).step()


@pytest.mark.parametrize("change", [written, given_other_data, stepped])
@pytest.mark.parametrize("session", [True, False], ids=["session", "no session"])
def test_a_weight_that_changed_is_cast_anew(change: Any, session: bool, weight: torch.Tensor) -> None:
    with flroute.enable("fl:0", fallback="allow") if session else torch.enable_grad(), autocast():
        product(weight)
        change(weight)
        assert product(weight).tolist() == [[8, 8, 8, 8]]


def test_a_module_that_moved_is_cast_where_it_is(weight: torch.Tensor) -> None:
    layer = nn.Linear(2, 2).to("fl:0")
    with autocast():
        layer(torch.ones(1, 2, device="fl:0"))
        layer.to("fl:1")
        assert layer(torch.ones(1, 2, device="fl:1")).device == torch.device("fl:1")


def test_each_dtype_has_its_own_cast(weight: torch.Tensor) -> None:
    with autocast(torch.float16):
        assert (weight @ weight).dtype == torch.float16
        with autocast(torch.bfloat16):
            assert (weight @ weight).dtype == torch.bfloat16
        assert (weight @ weight).dtype == torch.float16


def test_a_thread_that_ends_autocast_leaves_the_casts_of_others(
    casts: Callable[[], int], weight: torch.Tensor
) -> None:
    other = weight.detach().clone().requires_grad_()

    def elsewhere() -> None:
        with autocast():
            product(other)

    with autocast():
        product(weight)
        before = casts()
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        product(weight)
        assert casts() == before + 1  # the other thread's own


# Joins of both precisions, which autocast makes common -----------------------------------------------------------------


@pytest.mark.parametrize("lower", LOWER, ids=str)
@given(
    sizes=st.lists(st.integers(0, 4), min_size=2, max_size=4),
    kinds=st.lists(st.sampled_from(["lower", "float32", "int64", "bool"]), min_size=4, max_size=4),
    dim=st.integers(-2, 1),
)
def test_joins_of_several_dtypes_are_the_vendors(
    lower: torch.dtype, sizes: list[int], kinds: list[str], dim: int
) -> None:
    dtypes = {"lower": lower, "float32": torch.float32, "int64": torch.int64, "bool": torch.bool}
    numbers = np.random.default_rng(0)
    parts = [
        torch.from_numpy(numbers.normal(size=(size, 3) if dim in {0, -2} else (3, size))).to(dtypes[kind])
        for size, kind in zip(sizes, kinds, strict=False)
    ]
    expected = torch.cat(parts, dim)
    with flroute.enable("fl:0", fallback="error"):
        found = torch.cat([part.to("fl") for part in parts], dim)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected.to("fl"))
