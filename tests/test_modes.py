"""Sessions among PyTorch's other machinery: fake tensors, tracing, compilation, users' own modes, tensor subclasses."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._dynamo.backends.registry import lookup_backend
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import flroute
from flroute.vendor import Kernel
from support import COPY, Vendors, decisions_of, throw_away_vendors

REFERENCE, OPAQUE = flroute.device("reference:0"), flroute.device("opaque:0")
DEVICES = [pytest.param(REFERENCE, id="reference"), pytest.param(OPAQUE, id="opaque")]

vendors = pytest.fixture(throw_away_vendors)


@pytest.fixture(autouse=True)
def _stack_is_as_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch.empty(0).device.type == "cpu"


def session(device: torch.device = REFERENCE, **settings: Any) -> flroute.Session:
    return flroute.enable(device, **{"fallback": "allow", **settings})


def model() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.LayerNorm(3), torch.nn.Linear(3, 2)
    )


class Log(TorchDispatchMode):
    """A user's mode that looks on."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.seen.append((func.name(), result.device.type))
        return result


# Fake tensors ------------------------------------------------------------------------------------------------------------

LARGE = 100_000  # a weight of 40 GB: real memory for it would be noticed


@pytest.mark.parametrize("order", ["fake inside", "fake outside"])
@pytest.mark.parametrize("device", DEVICES)
def test_fake_tensors_cost_nothing(device: torch.device, order: str) -> None:
    gc.collect()  # what other tests left in cycles must not go in the middle
    before = torch.fl.memory_allocated(device)
    torch.fl.reset_peak_memory_stats(device)
    with ExitStack() as stack:
        for context in (session(device), FakeTensorMode())[:: 1 if order == "fake inside" else -1]:
            stack.enter_context(context)
        large = torch.nn.Linear(LARGE, LARGE)
        x = torch.ones(3, LARGE)
        y = torch.nn.functional.layer_norm(large(x).relu(), (LARGE,))[1:]
        y.sum().backward()
        for t in (large.weight.data, large.weight.grad, x, y, torch.randn(2), torch.arange(3)):
            assert isinstance(t, FakeTensor)
            assert t.device == device
        assert y.shape == (2, LARGE)
    assert torch.fl.memory_allocated(device) == before
    assert torch.fl.max_memory_allocated(device) == before


def test_fake_tensors_made_elsewhere_stay_fake_in_a_session() -> None:
    with FakeTensorMode() as mode:
        fake = torch.empty(3, LARGE, LARGE, device=REFERENCE)
    with session() as running:
        y = (fake * 2).t() if fake.dim() == 2 else (fake * 2).transpose(0, 1)
        assert isinstance(y, FakeTensor)
        assert (y.device, y.shape) == (REFERENCE, (LARGE, 3, LARGE))
        real = torch.ones(2)
        assert not isinstance(real, FakeTensor)
        copy = mode.from_tensor(real)
        assert isinstance(copy, FakeTensor)
        assert copy.device == REFERENCE
    assert decisions_of(running, "aten::mul.Tensor") == []


# Tracing -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tracing", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("device", DEVICES)
def test_make_fx(device: torch.device, tracing: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        made = torch.empty_like(x).fill_(2)
        view = (x @ x.t())[0]
        return (made[0, : view.shape[0]] + view).relu() + torch.ones(3, device=x.device)

    with session(device):
        x = torch.arange(12.0).reshape(3, 4)
        graph = make_fx(function, tracing_mode=tracing)(x)
        ops = {str(node.target) for node in graph.graph.nodes if node.op == "call_function"}
        assert {"aten.mm.default", "aten.relu.default", "aten.fill_.Scalar", "aten.t.default"} <= ops
        assert torch.equal(graph(x), function(x))
        assert graph(x).device == device


@pytest.mark.parametrize("device", DEVICES)
def test_export(device: torch.device) -> None:
    with session(device):
        net, x = model().eval(), torch.ones(2, 4)
        exported = torch.export.export(net, (x,))
        assert torch.allclose(exported.module()(x), net(x))
        assert exported.module()(x).device == device
    outside = model().to(device)
    assert torch.export.export(outside, (torch.ones(2, 4, device=device),)).module()(x).device == device


@pytest.mark.parametrize("where", ["outside", "session"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("device", DEVICES)
def test_compile(device: torch.device, backend: str, where: str) -> None:
    """The backend is really called, once for each side of a graph break, and gradients are eager's."""
    graphs: list[torch.fx.GraphModule] = []

    def compiler(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return lookup_backend(backend)(graph, inputs)

    torch.manual_seed(0)
    net = model().to(device)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = net(x)
        torch._dynamo.graph_break()
        return y.sin() * torch.ones(2, device=x.device)

    with ExitStack() as stack:
        running = stack.enter_context(session(device)) if where == "session" else None
        compiled = torch.compile(function, backend=compiler)
        results = []
        for call in (function, compiled, compiled):
            net.zero_grad()
            x = torch.linspace(-1, 1, 8, device=device).reshape(2, 4).requires_grad_()
            y = call(x)
            y.sum().backward()
            results.append([y.detach(), x.grad, *(p.grad.clone() for p in net.parameters())])
        assert len(graphs) == 2
        assert all(t.device == device for t in results[1])
        for later in results[1:]:
            torch.testing.assert_close([t.cpu() for t in later], [t.cpu() for t in results[0]])
        if running is not None:
            assert sum(d.calls for d in decisions_of(running, "aten::sin")) == 3


def test_compile_once_run_inside_and_outside() -> None:
    calls: list[int] = []

    def compiler(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        calls.append(1)
        return graph.forward

    compiled = torch.compile(lambda x: (x + 1).relu(), backend=compiler)
    x = torch.ones(3, device=REFERENCE)
    assert compiled(x).tolist() == [2.0] * 3
    with session() as running:
        assert compiled(x).tolist() == [2.0] * 3
    assert compiled(x).tolist() == [2.0] * 3
    assert calls
    assert sum(d.calls for d in decisions_of(running, "aten::relu")) == 1


@pytest.mark.parametrize("where", ["outside", "session"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_jit_trace(device: torch.device, where: str) -> None:
    with ExitStack() as stack:
        net = model().to(device)
        x = torch.linspace(-1, 1, 8).reshape(2, 4).to(device)
        if where == "session":
            stack.enter_context(session(device))
        traced = torch.jit.trace(net, x)
        assert torch.allclose(traced(x), net(x))
        assert traced(x * 2).device == device
        traced(x).sum().backward()
        assert net[0].weight.grad is not None


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_jit_trace_of_a_convolution() -> None:
    """Outside a session only: under any dispatch mode PyTorch's tracer takes a convolution's weight for a constant."""
    net, x = torch.nn.Conv2d(1, 2, 3), torch.ones(1, 1, 4, 4)
    with Log(), pytest.raises(RuntimeError, match="constant"):
        torch.jit.trace(net, x)
    there = net.to(REFERENCE)
    traced = torch.jit.trace(there, x.to(REFERENCE))
    assert torch.allclose(traced(x.to(REFERENCE)), there(x.to(REFERENCE)))


# Users' own modes -----------------------------------------------------------------------------------------------------------


def train_a_little() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.arange(6.0).reshape(2, 3).requires_grad_()
    y = torch.hypot((x @ x.t()).relu(), torch.ones(2, 2))[:, 1:]
    y.sum().backward()
    return y.detach(), x.grad


@pytest.mark.parametrize("order", ["mode inside", "mode outside", "between two sessions"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_users_mode_sees_the_ops_on_the_device(device: torch.device, order: str) -> None:
    log = Log()
    contexts: dict[str, list[Any]] = {
        "mode inside": [session(device), log],
        "mode outside": [log, session(device)],
        "between two sessions": [session(device), log, session(device)],
    }
    expected = train_a_little()
    with ExitStack() as stack:
        for context in contexts[order]:
            stack.enter_context(context)
        result = train_a_little()
    torch.testing.assert_close([t.cpu() for t in result], list(expected))
    ops = [op for op, kind in log.seen if kind == "fl"]
    assert {"aten::mm", "aten::relu", "aten::hypot", "aten::threshold_backward", "aten::slice.Tensor"} <= set(
        ops
    )
    assert ops.count("aten::mm") == 3
    sessions = [c for c in contexts[order] if isinstance(c, flroute.Session)]
    for running in sessions:
        assert sum(d.calls for d in decisions_of(running, "aten::mm")) == 3


def test_a_users_mode_may_change_a_result() -> None:
    class Twice(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            return result * 2 if func is torch.ops.aten.relu.default else result

    with session(), Twice():
        assert torch.relu(torch.ones(2)).tolist() == [2.0, 2.0]
    with Twice(), session():
        assert torch.relu(torch.ones(2)).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("order", ["inside", "outside"])
@pytest.mark.parametrize("device", DEVICES)
def test_flop_counter(device: torch.device, order: str) -> None:
    def flops(*contexts: Any) -> int:
        with ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context)
            torch.nn.Linear(4, 5)(torch.ones(3, 4, requires_grad=True)).sum().backward()
            torch.nn.Conv2d(1, 2, 3)(torch.ones(1, 1, 5, 5)).sum().backward()
        return next(c for c in contexts if isinstance(c, FlopCounterMode)).get_total_flops()

    counter = FlopCounterMode(display=False)
    contexts = [session(device), counter] if order == "inside" else [counter, session(device)]
    assert flops(*contexts) == flops(FlopCounterMode(display=False)) > 0


def test_other_modes() -> None:
    from torch.utils._debug_mode import DebugMode

    with session(), DebugMode() as debug:
        torch.relu(torch.ones(2))
    assert "aten::relu" in debug.debug_string()
    with session(), torch.autograd.graph.allow_mutation_on_saved_tensors():
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        z = y * y
        with torch.no_grad():
            y.zero_()
        z.sum().backward()
    torch.testing.assert_close(x.grad.cpu(), torch.full((3,), 2 * torch.e**2))


# Tensor subclasses ------------------------------------------------------------------------------------------------------------


def test_subclasses_keep_their_class() -> None:
    class Named(torch.Tensor):
        pass

    with session() as running:
        plain = torch.ones(3).as_subclass(Named)
        for result in (plain + 1, plain[1:], plain.hypot(plain), plain.t(), plain.clone()):
            assert type(result) is Named
            assert result.device == REFERENCE
        pair = TwoTensor(torch.ones(2, 2), torch.zeros(2, 2))
        total = (pair @ pair).relu() + 1
        assert type(total) is TwoTensor
        assert (total.a.tolist(), total.b.tolist()) == ([[3.0, 3.0]] * 2, [[1.0, 1.0]] * 2)
        assert total.a.device == REFERENCE
        parameter = torch.nn.Parameter(torch.ones(2))
        assert type(parameter.detach()) is torch.Tensor
        assert isinstance(torch.nn.Buffer(torch.ones(2)), torch.nn.Buffer)
    assert sum(d.calls for d in decisions_of(running, "aten::mm")) == 2


def test_host_tensors_of_other_layouts_are_left_alone() -> None:
    """What a session does not route works in it as outside: sparse, nested, quantized and meta tensors."""
    dense = torch.eye(3)
    with session(default_device=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sparse = dense.to_sparse()
        assert sparse.t().layout == torch.sparse_coo
        assert sparse.transpose(0, 1).to_dense().tolist() == dense.tolist()
        assert torch.equal(sparse.unsqueeze(0).to_dense()[0], dense)
        assert sparse.detach().coalesce().values().tolist() == [1.0] * 3
        assert torch.sparse.mm(sparse, dense).tolist() == dense.tolist()
        csr = dense.to_sparse_csr()
        assert csr.select(0, 1).to_dense().tolist() == [0.0, 1.0, 0.0]
        meta = torch.empty(2, 3, device="meta")
        assert (meta.t() + meta.t()).shape == (3, 2)
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
        assert nested.unbind()[1].tolist() == [1.0] * 3
        assert (nested.relu() + nested)[0].tolist() == [2.0] * 2
        assert (sparse * sparse).neg().to_dense().tolist() == (-dense).tolist()
        mkldnn = torch.ones(2, 3).to_mkldnn()
        assert mkldnn.to_dense().tolist() == [[1.0] * 3] * 2
        quantized = torch.quantize_per_tensor(dense, 0.5, 0, torch.quint8)
        assert quantized.t().dequantize().tolist() == dense.tolist()
        assert quantized[1].dequantize().tolist() == [0.0, 1.0, 0.0]


# Function transforms and the rest of autograd ----------------------------------------------------------------------------------


def check_transforms(device: torch.device) -> list[torch.Tensor]:
    x = torch.linspace(0.1, 1.2, 12, device="cpu").reshape(3, 2, 2).to(device)
    v = x[0, 0].clone()

    def f(t: torch.Tensor) -> torch.Tensor:
        return (t.sin() * t).sum()

    return [
        torch.vmap(lambda a: (a @ a.t()).sum(0))(x),
        torch.vmap(lambda a, b: a[0] * b, in_dims=(0, None))(x, v),
        torch.func.grad(f)(v),
        torch.func.grad_and_value(f)(v)[1],
        torch.func.jacrev(lambda t: t.exp() * t)(v),
        torch.func.jacfwd(lambda t: t.exp() * t)(v),
        torch.func.hessian(f)(v),
        torch.func.vjp(lambda t: t**2, v)[1](torch.ones_like(v))[0],
        torch.vmap(torch.func.grad(f))(x[0]),
        torch.func.functionalize(lambda t: t.clone().add_(1).view(-1).mul_(2))(x),
        torch.vmap(lambda t: torch.where(t > 0.5, t, -t).cumsum(0))(x[0]),
    ]


@pytest.mark.parametrize("where", ["outside", "session"])
@pytest.mark.parametrize("device", DEVICES)
def test_function_transforms(device: torch.device, where: str) -> None:
    expected = check_transforms(torch.device("cpu"))
    with ExitStack() as stack:
        if where == "session":
            stack.enter_context(session(device))
        results = check_transforms(device)
    assert all(r.device == device for r in results)
    torch.testing.assert_close([r.cpu() for r in results], expected)


def test_functional_call_and_ensembles() -> None:
    with session():
        nets = [model() for _ in range(3)]
        x = torch.ones(2, 4)
        parameters, buffers = torch.func.stack_module_state(nets)
        base = model().to("meta")
        y = torch.vmap(lambda p, b: torch.func.functional_call(base, (p, b), (x,)))(parameters, buffers)
        torch.testing.assert_close(y.cpu(), torch.stack([net(x) for net in nets]).cpu())


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("where", ["outside", "session"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.filterwarnings("ignore:.*torch.cpu.amp.autocast")
def test_activation_checkpoint(device: torch.device, where: str, reentrant: bool) -> None:
    def grads(run: Callable[..., Any]) -> list[torch.Tensor]:
        torch.manual_seed(3)
        net = model().to(device)
        x = torch.linspace(-1, 1, 8).reshape(2, 4).to(device).requires_grad_()
        run(lambda t: torch.nn.functional.dropout(net(t).relu(), 0.5), x).sum().backward()
        return [x.grad.cpu(), *(p.grad.cpu() for p in net.parameters())]

    with ExitStack() as stack:
        if where == "session":
            stack.enter_context(session(device, default_device=False))
        expected = grads(lambda f, x: f(x))
        result = grads(lambda f, x: checkpoint(f, x, use_reentrant=reentrant))
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("where", ["outside", "session", "user's mode inside", "user's mode outside"])
@pytest.mark.parametrize("grad", ["grad", "inference"])
@pytest.mark.parametrize(
    "kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN, torch.nn.LSTMCell, torch.nn.GRUCell]
)
@pytest.mark.parametrize("device", DEVICES)
def test_recurrent_networks(device: torch.device, kind: Callable[..., Any], grad: str, where: str) -> None:
    """PyTorch asks every device but the host for fused cells, and calls them from C++ with the default device in force."""
    torch.manual_seed(0)
    net = kind(3, 4)
    x = (
        torch.linspace(-1, 1, 6).reshape(2, 3)
        if "Cell" in kind.__name__
        else torch.linspace(-1, 1, 12).reshape(2, 2, 3)
    )

    def run(target: torch.device) -> list[torch.Tensor]:
        net.zero_grad()
        moved = net.to(target)
        result = moved(x.to(target))
        while isinstance(result, tuple):
            result = result[0]
        if grad == "inference":
            return [result.cpu()]
        result.sum().backward()
        return [result.detach().cpu(), *(p.grad.cpu() for p in moved.parameters())]

    expected = run(torch.device("cpu"))
    with ExitStack() as stack:
        if where == "user's mode outside":
            stack.enter_context(Log())
        if where != "outside":
            stack.enter_context(session(device))
        if where == "user's mode inside":
            stack.enter_context(Log())
        stack.enter_context(torch.inference_mode(grad == "inference"))
        torch.testing.assert_close(run(device), expected, rtol=1e-4, atol=1e-6)


# Composites under inference_mode -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grad", ["grad", "no_grad", "inference"])
@pytest.mark.parametrize("device", DEVICES)
def test_composites_in_every_grad_mode(device: torch.device, grad: str) -> None:
    """Under inference_mode composites arrive whole: they are split, so that their parts are routed and counted."""
    context = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}[grad]
    x = torch.arange(12.0, device="cpu").reshape(3, 4)
    w = torch.arange(8.0, device="cpu").reshape(2, 4)
    with session(device) as running, context():
        there, weight = x.to(device), w.to(device)
        results = [
            torch.nn.functional.linear(there, weight),
            there @ weight.t(),
            torch.einsum("ij,kj->ik", there, weight),
        ]
    for result in results:
        assert torch.equal(result.cpu(), x @ w.t())
    native = [d for d in decisions_of(running, "aten::mm") if d.route == "native"]
    assert native or device == REFERENCE
    assert not [
        d for d in running.fallbacks if d.op in ("aten::linear", "aten::matmul", "aten::einsum", "aten::mm")
    ]


def test_a_kernel_for_a_composite_takes_it_whole_under_inference_mode(vendors: Vendors) -> None:
    def product(a: Any, b: Any) -> Any:
        return a @ b + 100

    device = vendors(Kernel("aten::matmul", product), COPY).device
    with session(device), torch.inference_mode():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).tolist() == [[102.0] * 2] * 2


# Sessions in sessions ---------------------------------------------------------------------------------------------------------


def test_the_inner_policy_wins_and_the_outer_comes_back() -> None:
    x = torch.ones(3, device=REFERENCE)
    with session(fallback="error") as outer:
        with pytest.raises(flroute.FallbackError):
            torch.hypot(x, x)
        with session(fallback="allow") as inner:
            torch.hypot(x, x)
            with session(fallback="error"), pytest.raises(flroute.FallbackError):
                torch.hypot(x, x)
            torch.hypot(x, x)
        with pytest.raises(flroute.FallbackError):
            torch.hypot(x, x)
        torch.relu(x)
    assert [d.calls for d in decisions_of(inner, "aten::hypot")] == [2]
    assert [d.calls for d in decisions_of(outer, "aten::hypot")] == [2], (
        "the outer log takes in the inner one's calls"
    )
    assert [d.calls for d in decisions_of(outer, "aten::relu")] == [1]


def test_the_inner_policy_wins_beneath_a_users_mode() -> None:
    """Where the inner session passes calls on to a user's mode, the kernels that PyTorch calls in the end ask for its policy."""
    x = torch.ones(3, device=REFERENCE)
    with session(fallback="error"), Log(), session(fallback="allow") as inner:
        torch.hypot(x, x)
    assert [d.calls for d in decisions_of(inner, "aten::hypot")] == [1]
    with session(fallback="allow"), Log(), session(fallback="error"), pytest.raises(flroute.FallbackError):
        torch.hypot(x, x)


def test_the_inner_device_wins_and_the_outer_comes_back() -> None:
    with session(REFERENCE):
        assert torch.ones(1).device == REFERENCE
        with session(OPAQUE):
            assert torch.ones(1).device == OPAQUE
            assert (torch.ones(2, device=REFERENCE) + 1).device == REFERENCE
        assert torch.ones(1).device == REFERENCE


# Version counters ------------------------------------------------------------------------------------------------------------------

WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "_foreach_mul_": lambda t: torch._foreach_mul_([t], 5.0),
    "_foreach_add_": lambda t: torch._foreach_add_([t], [t.detach().clone()]),
    "_foreach_addcmul_": lambda t: torch._foreach_addcmul_([t], [t.detach().clone()], [t.detach().clone()]),
    "_foreach_copy_": lambda t: torch._foreach_copy_([t], [t.detach() * 2]),
    "_foreach_zero_": lambda t: torch._foreach_zero_([t]),
    "_foreach_sqrt_": lambda t: torch._foreach_sqrt_([t]),
    "_foreach_lerp_": lambda t: torch._foreach_lerp_([t], [t.detach() * 2], 0.5),
    "_foreach_clamp_max_": lambda t: torch._foreach_clamp_max_([t], 0.5),
    "mul_": lambda t: t.mul_(5),
    "hypot_": lambda t: t.hypot_(t.detach().clone()),
    "out=": lambda t: torch.add(torch.ones(3, device=t.device), 1, out=t.detach()),
    "copy_ from the host": lambda t: t.copy_(torch.zeros(3, device="cpu")),
    "assignment": lambda t: t.__setitem__(0, 2.0),
    "optimizer": lambda t: torch.optim.SGD([_leaf_over(t)], lr=0.1, foreach=True).step(),
}


def _leaf_over(t: torch.Tensor) -> torch.Tensor:
    leaf = t.detach().requires_grad_()
    leaf.grad = torch.ones_like(t)
    return leaf


@pytest.mark.parametrize(
    "where", ["outside", "session", "nested", "user's mode inside", "user's mode outside"]
)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", WRITES)
def test_a_modified_saved_tensor_is_noticed(name: str, device: torch.device, where: str) -> None:
    contexts: dict[str, list[Callable[[], Any]]] = {
        "outside": [],
        "session": [lambda: session(device)],
        "nested": [lambda: session(device), lambda: session(device)],
        "user's mode inside": [lambda: session(device), Log],
        "user's mode outside": [Log, lambda: session(device)],
    }
    with ExitStack() as stack:
        for make in contexts[where]:
            stack.enter_context(make())
        leaf = torch.ones(3, device=device, requires_grad=True)
        saved = leaf.exp()
        loss = saved.sum()
        before = saved._version
        with torch.no_grad():
            WRITES[name](saved)
        if name.startswith("_foreach") or name == "optimizer":
            if where == "user's mode outside":
                return  # the user's mode comes first, and PyTorch does not count list ops under one on the host either
        assert saved._version == before + 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        with torch.inference_mode():  # whose tensors have no version counter
            torch._foreach_mul_([torch.ones(2, device=device)], 2.0)
