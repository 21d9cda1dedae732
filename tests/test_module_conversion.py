"""Moving modules to the device and back: Parameters keep their identity and everything that hangs on it."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.weak import WeakIdKeyDictionary

import flroute
from flroute.device import parameters

HOST, DEVICE, SECOND = torch.device("cpu"), torch.device("fl:0"), torch.device("fl:1")


class Tied(nn.Module):
    """An embedding whose weight is also the output layer's, as in language models."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embed(x)))


def devices_of(module: nn.Module) -> set[torch.device]:
    return {t.device for t in (*module.parameters(), *module.buffers())}


def snapshot(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().cpu().clone() for name, value in module.state_dict().items()}


def assert_same_values(module: nn.Module, before: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(snapshot(module), before, rtol=0, atol=0)


CONVERSIONS: dict[str, tuple[Callable[[nn.Module], nn.Module], torch.device]] = {
    'to("fl")': (lambda m: m.to("fl"), DEVICE),
    'to("fl:1")': (lambda m: m.to("fl:1"), SECOND),
    "to(device)": (lambda m: m.to(device=SECOND), SECOND),
    "to(tensor)": (lambda m: m.to(torch.ones(1, device="fl:1")), SECOND),
    "fl()": (lambda m: m.fl(), DEVICE),
    "fl(1)": (lambda m: m.fl(1), SECOND),
    "there and back": (lambda m: m.to("fl").cpu(), HOST),
    "from one to the other": (lambda m: m.to("fl:0").to("fl:1"), SECOND),
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_parameters_keep_identity_values_and_ties(name: str) -> None:
    convert, target = CONVERSIONS[name]
    module = Tied()
    before, objects = snapshot(module), list(module.parameters())

    assert convert(module) is module

    assert devices_of(module) == {target}
    assert all(a is b for a, b in zip(module.parameters(), objects, strict=True))
    assert module.head.weight is module.embed.weight
    assert_same_values(module, before)


def test_tied_weights_train_as_one() -> None:
    host = Tied()
    module = copy.deepcopy(host).to("fl")
    tokens = torch.arange(7)
    host(tokens).square().sum().backward()
    module(tokens.to("fl")).square().sum().backward()
    torch.testing.assert_close(module.embed.weight.grad.cpu(), host.embed.weight.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW], ids=lambda m: m.__name__)
def test_an_optimizer_built_before_the_move_trains_the_module(make: Any) -> None:
    torch.manual_seed(3)
    host = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    module = copy.deepcopy(host)
    trained, reference = make(module.parameters(), lr=0.1), make(host.parameters(), lr=0.1)
    module.to("fl")
    x = torch.randn(5, 3)
    for _ in range(3):
        for net, optimizer, data in ((module, trained, x.to("fl")), (host, reference, x)):
            optimizer.zero_grad()
            net(data).square().mean().backward()
            optimizer.step()
    for moved, stayed in zip(module.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(moved.cpu(), stayed.detach(), rtol=1e-5, atol=1e-6)


def test_weak_references_survive() -> None:
    module = nn.Linear(3, 2)
    reference = weakref.ref(module.weight)
    keyed = WeakIdKeyDictionary({module.bias: "bias"})
    module.to("fl")
    gc.collect()
    assert reference() is module.weight
    assert module.weight.device == DEVICE
    assert keyed[module.bias] == "bias"


# Autograd ---------------------------------------------------------------------------------------------------------


def test_a_living_host_graph_does_not_stop_the_move_and_its_loss_of_gradient_is_said() -> None:
    module = nn.Linear(3, 2)
    reference = weakref.ref(module.weight)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    x = torch.ones(1, 3, requires_grad=True)
    loss = module(x).sum()
    weight_before = module.weight.detach().clone()

    module.to("fl")
    assert reference() is module.weight is optimizer.param_groups[0]["params"][0]
    assert module.weight.device == DEVICE

    with pytest.warns(UserWarning, match=r"Linear\.(weight|bias) as it was on cpu.*on fl:0.*lost") as said:
        loss.backward()
    assert len([w for w in said if "lost" in str(w.message)]) == 1
    assert module.weight.grad is None
    # the old graph itself is intact
    torch.testing.assert_close(x.grad, weight_before.sum(0, keepdim=True))

    module(torch.ones(1, 3, device="fl")).sum().backward()
    assert torch.equal(module.weight.grad.cpu(), torch.ones(2, 3))


def test_a_finished_graph_says_nothing() -> None:
    module = nn.Linear(3, 2)
    loss = module(torch.ones(1, 3)).sum()
    loss.backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module.to("fl")
        module(torch.ones(1, 3, device="fl")).sum().backward()
        module.cpu()
    assert torch.equal(module.weight.grad, torch.full((2, 3), 2.0))
    assert loss.grad_fn is not None


@pytest.mark.parametrize("frozen", [False, True])
def test_grad_and_requires_grad_are_carried_over(frozen: bool) -> None:
    module = nn.Linear(3, 2)
    module(torch.arange(3.0)).sum().backward()
    gradient = module.weight.grad.clone()
    module.requires_grad_(not frozen)
    module.to("fl:1")
    assert module.weight.requires_grad is not frozen
    assert module.weight.is_leaf
    assert module.weight.grad.device == SECOND
    module.double()
    assert module.weight.grad.dtype == torch.float64
    module.float().cpu()
    assert torch.equal(module.weight.grad, gradient)


def test_parameter_hooks_run_on_the_device_once_and_can_be_removed() -> None:
    module = nn.Linear(3, 2, bias=False)
    calls: list[tuple[str, torch.device]] = []
    doubling = module.weight.register_hook(lambda g: calls.append(("before", g.device)) or g * 2)
    late = module.weight.register_post_accumulate_grad_hook(
        lambda p: calls.append(("after" if p is module.weight else "of another", p.device))
    )
    module.to("fl")
    module(torch.ones(1, 3, device="fl")).sum().backward()
    assert calls == [("before", DEVICE), ("after", DEVICE)]
    assert torch.equal(module.weight.grad.cpu(), torch.full((2, 3), 2.0))

    doubling.remove()
    late.remove()
    module(torch.ones(1, 3, device="fl")).sum().backward()
    assert len(calls) == 2
    assert torch.equal(module.weight.grad.cpu(), torch.full((2, 3), 3.0))


@pytest.mark.filterwarnings("ignore:a backward pass reached")
def test_parameter_hooks_do_not_run_for_the_values_before_the_move() -> None:
    module = nn.Linear(3, 2, bias=False)
    calls: list[torch.Tensor] = []
    module.weight.register_hook(calls.append)
    module.weight.register_post_accumulate_grad_hook(calls.append)
    loss = module(torch.ones(1, 3)).sum()
    module.to("fl")
    loss.backward()
    assert calls == []


def test_a_move_under_inference_mode_leaves_a_module_that_trains() -> None:
    module = nn.Linear(3, 2)
    with torch.inference_mode():
        module.to("fl")
    assert not module.weight.is_inference()
    module(torch.ones(1, 3, device="fl")).sum().backward()
    assert torch.equal(module.weight.grad.cpu(), torch.ones(2, 3))


# All or nothing ---------------------------------------------------------------------------------------------------


class RefusedError(Exception):
    pass


def refuse_at(
    count: int, fn: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[torch.Tensor], torch.Tensor]:
    calls = iter(range(1, count + 1))

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        if next(calls) == count:
            raise RefusedError
        return fn(tensor)

    return convert


@settings(max_examples=25, deadline=None)
@given(count=st.integers(1, 13), back=st.booleans())
def test_an_error_at_any_tensor_leaves_the_module_as_it_was(count: int, back: bool) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False))
    module(torch.randn(3, 4)).sum().backward()  # with the gradients 13 tensors in all
    seen: list[int] = []
    module[2].weight.register_hook(lambda g: seen.append(1))
    source, target = (DEVICE, HOST) if back else (HOST, DEVICE)
    module.to(source)
    before, objects = snapshot(module), list(module.parameters())

    def buffers_and_gradients() -> list[torch.Tensor | None]:
        return [*module.buffers(), *(p.grad for p in module.parameters())]

    tensors = buffers_and_gradients()

    with pytest.raises(RefusedError):
        module._apply(refuse_at(count, lambda t: t.to(target)))

    assert devices_of(module) == {source}
    assert all(a is b for a, b in zip(module.parameters(), objects, strict=True))
    assert all(a is b for a, b in zip(buffers_and_gradients(), tensors, strict=True))
    assert_same_values(module, before)
    module(torch.randn(3, 4).to(source)).sum().backward()
    assert seen == [1]


def test_out_of_memory_names_the_device_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    memory = flroute.devices()[0].memory
    allocate, calls = type(memory).allocate, []

    def full_at_the_third(self: Any, device: int, nbytes: int) -> int:
        calls.append(nbytes)
        if len(calls) == 3:
            raise MemoryError("full")
        return allocate(self, device, nbytes)

    monkeypatch.setattr(type(memory), "allocate", full_at_the_third)
    before = snapshot(module)
    with pytest.raises(torch.OutOfMemoryError, match="fl:0"):
        module.to("fl")
    assert devices_of(module) == {HOST}
    assert_same_values(module, before)
    module.to("fl")
    assert devices_of(module) == {DEVICE}


# Kinds of modules -------------------------------------------------------------------------------------------------


def test_modules_that_override_apply_do_their_part() -> None:
    class Recorder(nn.Linear):
        def _apply(self, fn: Any, recurse: bool = True) -> nn.Module:
            super()._apply(fn, recurse)
            self.home = self.weight.device  # finds the converted Parameter
            return self

    class StaysOnHost(nn.Linear):
        def _apply(self, fn: Any, recurse: bool = True) -> nn.Module:
            return self

    class Narrows(nn.Linear):
        def _apply(self, fn: Any, recurse: bool = True) -> nn.Module:
            return super()._apply(lambda t: fn(t).to(torch.bfloat16), recurse)

    module = nn.Sequential(Recorder(2, 2), StaysOnHost(2, 2), Narrows(2, 2))
    objects = list(module.parameters())
    module.to("fl")
    assert module[0].home == DEVICE
    assert devices_of(module[1]) == {HOST}
    assert {(p.device, p.dtype) for p in module[2].parameters()} == {(DEVICE, torch.bfloat16)}
    assert all(a is b for a, b in zip(module.parameters(), objects, strict=True))


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.RNN], ids=lambda m: m.__name__)
def test_recurrent_modules(make: Any) -> None:
    torch.manual_seed(0)
    host = make(3, 4, num_layers=2, bidirectional=True)
    module = copy.deepcopy(host).to("fl")
    assert all(a is b for a, b in zip(module._flat_weights, module.parameters(), strict=True))
    x = torch.randn(5, 2, 3)
    torch.testing.assert_close(module(x.to("fl"))[0].cpu(), host(x)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "make", [lambda: nn.LazyLinear(3), nn.LazyBatchNorm1d], ids=["parameters", "buffers"]
)
@pytest.mark.parametrize("device", [HOST, DEVICE], ids=str)
def test_lazy_modules_materialize_where_they_were_moved(make: Any, device: torch.device) -> None:
    module = make()
    weight = module.weight
    module.to(device, torch.float64)
    assert isinstance(module.weight, nn.parameter.UninitializedParameter)
    assert module(torch.ones(2, 5, device=device, dtype=torch.float64)).device == device
    assert module.weight is weight
    assert type(weight) is nn.Parameter
    assert devices_of(module) == {device}


def test_meta_modules_get_memory_through_to_empty() -> None:
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    weight = module[0].weight
    module.to_empty(device="fl:1")
    assert module[0].weight is weight
    assert devices_of(module) == {SECOND}
    nn.init.ones_(weight)
    assert torch.equal(weight.cpu(), torch.ones(2, 3))
    module.to("meta")
    assert module[0].weight is weight
    assert devices_of(module) == {torch.device("meta")}


NARROWINGS: list[Callable[[nn.Module], nn.Module]] = [
    lambda m: m.half(),
    lambda m: m.to(torch.float16),
    lambda m: m.type(torch.float16),
]


@pytest.mark.parametrize("narrow", NARROWINGS)
def test_dtype_conversions_on_the_device(narrow: Callable[[nn.Module], nn.Module]) -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.Embedding(2, 2)).to("fl")
    objects, before = list(module.parameters()), snapshot(module)
    narrow(module)
    assert {(p.device, p.dtype) for p in module.parameters()} == {(DEVICE, torch.float16)}
    assert all(a is b for a, b in zip(module.parameters(), objects, strict=True))
    torch.testing.assert_close(snapshot(module), {k: v.half() for k, v in before.items()}, rtol=0, atol=0)


def test_parametrized_modules() -> None:
    module = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(3, 2)), parametrizations.spectral_norm(nn.Linear(2, 2))
    )
    host, x = copy.deepcopy(module).eval(), torch.randn(4, 3)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module.to("fl").eval()
    assert devices_of(module) == {DEVICE}
    torch.testing.assert_close(module(x.to("fl")).cpu(), host(x), rtol=1e-5, atol=1e-5)
    module(x.to("fl")).sum().backward()
    assert all(p.grad is not None for group in optimizer.param_groups for p in group["params"])


def test_shared_and_nested_modules() -> None:
    shared = nn.BatchNorm1d(3)
    module = nn.ModuleDict({"a": nn.Sequential(shared, nn.Sequential(shared)), "b": shared})
    module.to("fl")
    assert module["b"] is module["a"][0] is module["a"][1][0]
    assert devices_of(module) == {DEVICE}


@pytest.mark.parametrize("module", [nn.Identity(), nn.Sequential(), nn.ModuleList([nn.ReLU()])], ids=repr)
def test_modules_without_tensors(module: nn.Module) -> None:
    assert module.to("fl") is module


def test_modules_with_buffers_only() -> None:
    module = nn.BatchNorm1d(3, affine=False).to("fl")
    assert devices_of(module) == {DEVICE}
    assert devices_of(module.cpu()) == {HOST}


def test_integer_parameters_and_shallow_conversion() -> None:
    module = nn.Sequential(nn.Linear(2, 2))
    module.index = nn.Parameter(torch.arange(3), requires_grad=False)
    index = module.index
    module._apply(lambda t: t.to("fl"), recurse=False)
    assert module.index is index
    assert module.index.device == DEVICE
    assert devices_of(module[0]) == {HOST}
    module.to("fl", torch.bfloat16)
    assert module.index.dtype == torch.int64
    assert module[0].weight.dtype == torch.bfloat16


def test_parameter_subclasses_and_attributes() -> None:
    class Scaled(nn.Parameter):
        pass

    module = nn.Linear(3, 2)
    module.weight = Scaled(torch.ones(2, 3))
    module.weight.scale = 4
    weight = module.weight
    module.to("fl")
    assert module.weight is weight
    assert type(weight) is Scaled
    assert weight.scale == 4
    assert weight.device == DEVICE


def test_a_tensor_that_the_conversion_returns_stays_the_callers_own() -> None:
    module = nn.Linear(3, 2, bias=False)
    mine = torch.ones(2, 3, device="fl")
    module._apply(lambda _: mine)
    assert mine.device == DEVICE
    assert not mine.requires_grad
    assert module.weight.data_ptr() == mine.data_ptr()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_scripted_modules() -> None:
    host = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    module = nn.Sequential(torch.jit.script(host), nn.Linear(2, 2))
    x = torch.randn(4, 3)
    expected = module(x)
    module.to("fl")
    assert devices_of(module) == {DEVICE}
    torch.testing.assert_close(module(x.to("fl")).cpu(), expected)


def test_fake_modules() -> None:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        module = nn.Linear(3, 2)
        module.to("fl")
        assert isinstance(module.weight, FakeTensor)
        assert module.weight.device == DEVICE
        assert module(torch.ones(1, 3, device="fl")).shape == (1, 2)


def test_parameters_that_wrap_other_tensors() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    module = nn.Linear(3, 2, bias=False)
    module.weight = nn.Parameter(TwoTensor(torch.ones(2, 3), torch.zeros(2, 3)))
    weight = module.weight
    module.to("fl")
    assert module.weight is weight
    assert weight.a.device == weight.b.device == weight.device == DEVICE
    assert torch.equal(weight.a.cpu(), torch.ones(2, 3))


def test_inside_a_session_a_bare_fl_is_the_sessions_device() -> None:
    module = nn.Linear(3, 2)
    weight = module.weight
    with flroute.enable(device="fl:1", fallback="allow"):
        module.to("fl")
        assert module(torch.ones(1, 3)).device == SECOND
    assert module.weight is weight
    assert devices_of(module) == {SECOND}


# Modules that the device has nothing to do with -------------------------------------------------------------------


HOST_CONVERSIONS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda t: t.double() if t.is_floating_point() else t,
    lambda t: t.to("cpu"),
    lambda t: torch.empty_like(t, device="meta"),
    lambda t: t.share_memory_(),
]


@pytest.mark.parametrize("convert", HOST_CONVERSIONS)
@pytest.mark.parametrize("overwrite", [False, True])
def test_host_conversions_are_pytorchs_own(
    convert: Any, overwrite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for apply in (nn.Module._apply, nn.Module._apply.__wrapped__):
        with monkeypatch.context() as patched:
            patched.setattr(nn.Module, "_apply", apply)
            torch.__future__.set_overwrite_module_params_on_conversion(overwrite)
            try:
                module = Tied()
                objects, calls = dict(module.named_parameters(remove_duplicate=False)), []

                def counted(tensor: torch.Tensor, calls: list[Any] = calls) -> torch.Tensor:
                    calls.append(tuple(tensor.shape))
                    return convert(tensor)

                module._apply(counted)
            finally:
                torch.__future__.set_overwrite_module_params_on_conversion(False)
        kept = [p is objects[name] for name, p in module.named_parameters(remove_duplicate=False)]
        described = [(t.device, t.dtype, t.is_shared()) for t in (*module.parameters(), *module.buffers())]
        results.append((sorted(calls), kept, described))
    assert results[0] == results[1]


def test_a_host_graph_over_a_host_conversion_keeps_its_gradient() -> None:
    module = nn.Linear(3, 2)
    loss = module(torch.ones(1, 3)).sum()
    module.to("cpu")
    loss.backward()
    assert torch.equal(module.weight.grad, torch.ones(2, 3))


def test_the_global_swap_flag_is_left_alone_and_works() -> None:
    assert parameters.installed()
    assert not torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        module = nn.Linear(3, 2)
        reference = weakref.ref(module.weight)
        module.to("fl")
        assert reference() is module.weight
        assert module.weight.device == DEVICE
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def test_installing_twice_wraps_once() -> None:
    before = nn.Module._apply
    parameters.install()
    assert nn.Module._apply is before
