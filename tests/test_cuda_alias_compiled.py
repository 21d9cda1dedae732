"""Under ``alias=("cuda",)`` compiled code takes the branches that the same code takes when it is not compiled."""

from __future__ import annotations

import functools
import logging
import operator
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import flroute
from flroute.cuda_alias import traced
from flroute.cuda_alias.patches import find
from flroute.errors import DeviceError
from flroute.torch_compat import DYNAMO_NAMES

Function = Callable[[torch.Tensor], Any]


@pytest.fixture(autouse=True)
def nothing_compiled_yet() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Backend:
    """Runs graphs as ``aot_eager`` does, and keeps them."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, graph: torch.fx.GraphModule, examples: Any) -> Any:
        self.graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, examples)


def compiled(function: Function) -> tuple[Function, Backend]:
    backend = Backend()
    return torch.compile(function, backend=backend), backend


# Reading ------------------------------------------------------------------------------------------------------------


def _in_a_match(x: torch.Tensor) -> bool:
    match x.device.type:
        case "cuda":
            return True
        case _:
            return False


def _first(x: torch.Tensor) -> Iterator[bool]:
    yield x.is_cuda


SAYS_CUDA: dict[str, Callable[[torch.Tensor], bool]] = {
    "type": lambda x: x.device.type == "cuda",
    "is_cuda": lambda x: x.is_cuda,
    "get_device": lambda x: x.get_device() == 0,
    "get_device of the class": lambda x: torch.Tensor.get_device(x) == 0,
    "str": lambda x: str(x.device) == "cuda:0",
    "format": lambda x: f"{x.device}" == "cuda:0",
    "repr": lambda x: repr(x.device) == "device(type='cuda', index=0)",
    "equal": lambda x: x.device == torch.device("cuda:0"),
    "equal of two words": lambda x: torch.device("cuda", 0) == x.device,
    "equal of a number": lambda x: torch.device(0) == x.device,
    "not the host": lambda x: x.device != torch.device("cpu") and not x.is_cpu,
    "in a set": lambda x: x.device in {torch.device("cuda:0"), None},
    "key of a dict": lambda x: {"cuda": True, "fl": False}[x.device.type],
    "getattr": lambda x: getattr(x, "is_cuda"),  # noqa: B009 -- as people write it
    "attrgetter": lambda x: operator.attrgetter("device.type")(x) == "cuda",
    "match": _in_a_match,
    "generator": lambda x: next(_first(x)),
    "all of many": lambda x: all(t.is_cuda for t in (x, x)),
    "map": lambda x: [*map(lambda t: t.device.type, [x])] == ["cuda"],  # noqa: C417 -- as people write it
    "reduce": lambda x: functools.reduce(lambda known, t: known and t.is_cuda, [x], True),
    "of a view": lambda x: x[0].is_cuda and x.detach().device.type == "cuda" and x.data.is_cuda,
    "of a result": lambda x: (x + 1).is_cuda and x.sum().get_device() == 0,
    "of a parameter": lambda x: torch.nn.Parameter(x).is_cuda,
    "old type": lambda x: x.type() == "torch.cuda.FloatTensor",
    "there and back": lambda x: not x.cpu().is_cuda and x.cpu().to(x.device).is_cuda,
    "available": lambda _: torch.cuda.is_available(),
    "how many": lambda _: torch.cuda.device_count() > 0 and torch.cuda.current_device() == 0,
    "what it can": lambda _: torch.cuda.is_bf16_supported() and torch.cuda.get_device_capability() is not None,
    "its name": lambda _: len(torch.cuda.get_device_name(0)) > 0,
    "no autocast": lambda _: not torch.is_autocast_enabled() and not torch.is_autocast_enabled("cuda"),
    "accelerator": lambda _: torch.accelerator.current_accelerator().type == "cuda",  # type: ignore[union-attr]
}  # fmt: skip


def test_traced_code_hears_what_running_code_hears() -> None:
    def answers(x: torch.Tensor) -> Any:
        return {name: says(x) for name, says in SAYS_CUDA.items()}, x * 2

    function, backend = compiled(answers)
    with flroute.enable(alias=("cuda",)):
        x = torch.ones(3, device="cuda")
        running, traced_answers = answers(x)[0], function(x)[0]
        assert traced_answers == running
        assert [name for name, said in running.items() if not said] == []
    assert len(backend.graphs) == 1


def test_code_of_pytorchs_own_hears_the_truth() -> None:
    names: dict[str, Any] = {"torch": torch}
    inside = str(Path(torch.__file__).parent / "nn" / "written_by_a_test.py")
    source = "def kind(x):\n    return x.device.type, x.is_cuda, torch.device('cuda').type"
    exec(compile(source, inside, "exec"), names)

    def ask(x: torch.Tensor) -> Any:
        return names["kind"](x), x.device.type, x + 1

    function, _ = compiled(ask)
    with flroute.enable(alias=("cuda",)):
        x = torch.ones(3, device="cuda")
        assert ask(x)[:2] == function(x)[:2] == (("fl", False, "fl"), "cuda")


# Making and moving --------------------------------------------------------------------------------------------------

LANDS_ON_CUDA: dict[str, Function] = {
    "zeros": lambda _: torch.zeros(3, device="cuda"),
    "ones, of a device": lambda _: torch.ones(3, device=torch.device("cuda:0")),
    "full, of a number": lambda _: torch.full((3,), 2.0, device=0),
    "arange, where another is": lambda x: torch.arange(3, device=x.device),
    "linspace, by its number": lambda x: torch.linspace(0, 1, 3, device=f"cuda:{x.get_device()}"),
    "eye, of current_device": lambda _: torch.eye(3, device=torch.device("cuda", torch.cuda.current_device())),
    "tensor": lambda _: torch.tensor([1.0, 2.0], device="cuda"),
    "tensor of a number": lambda x: torch.tensor(x.get_device(), device=x.device),
    "as_tensor": lambda _: torch.as_tensor([1.0, 2.0], device="cuda"),
    "zeros_like": lambda x: torch.zeros_like(x.cpu(), device="cuda"),
    "new_zeros": lambda x: x.new_zeros(3, device="cuda:0") + x.new_ones(3),
    "new_full": lambda x: x.cpu().new_full((3,), 2.0, device="cuda"),
    "pinned": lambda _: torch.zeros(3, pin_memory=True).cuda(non_blocking=True),
    "to": lambda _: torch.arange(3.0).to("cuda"),
    "to, of a keyword": lambda _: torch.arange(3.0).to(device="cuda", dtype=torch.float64),
    "to, of a number": lambda _: torch.arange(3.0).to(0),
    "to, of the class": lambda _: torch.Tensor.to(torch.arange(3.0), "cuda", torch.float64),
    "cuda": lambda _: torch.arange(3.0).cuda() + torch.arange(3.0).cuda(0) + torch.arange(3.0).cuda(device="cuda"),
    "type": lambda _: torch.arange(3).type("torch.cuda.DoubleTensor"),
    "type, of a type": lambda _: torch.arange(3).type(torch.cuda.DoubleTensor),
    "to another": lambda x: torch.arange(3.0).to(x) + torch.arange(3).type_as(x),
}  # fmt: skip


def test_graphs_name_the_device_that_is_meant() -> None:
    def make(x: torch.Tensor) -> Any:
        return {name: make(x) for name, make in LANDS_ON_CUDA.items()}

    function, backend = compiled(make)
    with flroute.enable(alias=("cuda",)):
        x = torch.ones(3, device="cuda")
        made = function(x)
        for name, expected in make(x).items():
            assert made[name].device == expected.device == torch.device("cuda:0"), name
            assert made[name].dtype == expected.dtype, name
            assert torch.equal(made[name], expected), name
    (graph,) = backend.graphs
    assert "cuda" not in graph.code


def test_autocast_for_cuda_is_autocast_in_graphs() -> None:
    def product(x: torch.Tensor) -> Any:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            inside = x @ x, torch.is_autocast_enabled(), torch.get_autocast_dtype("cuda")
        with torch.autocast(device_type=x.device.type, enabled=False):
            return inside, x @ x

    function, backend = compiled(product)
    with flroute.enable(alias=("cuda",)):
        x = torch.ones(3, 3, device="cuda")
        (half, *said), full = function(x)
        assert (half.dtype, full.dtype, said) == (torch.bfloat16, torch.float32, [True, torch.bfloat16])
        (expected, *also), _ = product(x)
        assert said == also
        assert torch.equal(half, expected)
    assert len(backend.graphs) == 1


# What Dynamo leaves to Python ---------------------------------------------------------------------------------------


def _on_another_device(_: torch.Tensor) -> Any:
    with torch.cuda.device(1):
        return torch.ones(3, device="cuda") * torch.cuda.current_device()


def _on_a_stream_of_another(_: torch.Tensor) -> Any:
    with torch.cuda.stream(torch.cuda.Stream(device="cuda:1")):
        return torch.ones(3, device="cuda") * torch.cuda.current_device()


def _stream_itself(_: torch.Tensor) -> Any:
    with torch.cuda.Stream(device=1):
        return torch.ones(3, device="cuda")


def _another_device_from_here(_: torch.Tensor) -> Any:
    before = torch.ones(3, device="cuda").get_device()
    torch.cuda.set_device(1)
    after = torch.ones(3, device="cuda") * torch.cuda.current_device()
    torch.cuda.set_device(0)
    return after + before


def _events(x: torch.Tensor) -> Any:
    event = torch.cuda.Event()
    event.record()
    y = x * 2 if x.is_cuda else x * 3
    event.synchronize()
    torch.cuda.synchronize()
    return y + torch.ones(3, device="cuda")


def _generator(_: torch.Tensor) -> Any:
    return torch.rand(3, generator=torch.Generator(device="cuda").manual_seed(3), device="cuda")


def _seeded(_: torch.Tensor) -> Any:
    torch.cuda.manual_seed(7)
    return torch.rand(3, device="cuda")


def _old_types(x: torch.Tensor) -> Any:
    return torch.cuda.FloatTensor([1, 2, 3]) * (2 if isinstance(x, torch.cuda.FloatTensor) else 3)


def _default_device(x: torch.Tensor) -> Any:
    torch.set_default_device("cuda")
    y = torch.ones(3)
    torch.set_default_device(None)
    return x + y


@torch.compiler.allow_in_graph
def allowed(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.is_cuda else x * 3


def _printed(x: torch.Tensor) -> Any:
    torch._dynamo.graph_break()
    y = x * 2 if x.is_cuda else x * 3
    torch._dynamo.graph_break()
    return y + torch.ones(3, device=y.device)


@pytest.mark.parametrize(
    "function",
    [
        _on_another_device, _on_a_stream_of_another, _stream_itself, _another_device_from_here, _events, _generator,
        _seeded, _old_types, _default_device, lambda x: allowed(x), _printed,
    ],
)  # fmt: skip
def test_what_dynamo_leaves_to_python_is_done_there(function: Function) -> None:
    with flroute.enable(alias=("cuda",)):
        x = torch.arange(3.0).cuda()
        expected, found = function(x), compiled(function)[0](x)
        assert found.device == expected.device
        assert torch.equal(found, expected)


def test_what_dynamo_kept_from_before_is_not_what_it_hears() -> None:
    """It keeps a handler for ``isinstance`` of a tensor and a class, once a function had one."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * (2 if isinstance(x, torch.Tensor) else 3)

    x = torch.arange(3.0, device="fl")
    assert compiled(function)[0](x).tolist() == [0, 2, 4]
    with flroute.enable(alias=("cuda",)):
        assert torch.equal(compiled(_old_types)[0](x), _old_types(x))
    assert compiled(function)[0](x).tolist() == [0, 2, 4]


def test_nothing_insists_on_one_graph_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="flroute"), flroute.enable(alias=("cuda",)):
        function = torch.compile(_events, backend="eager", fullgraph=True)
        assert function(torch.ones(3, device="cuda")).tolist() == [3, 3, 3]
    messages = [record.getMessage() for record in caplog.records]
    assert "torch.compile: fullgraph=True is not insisted on while cuda means the device" in messages
    (line,) = [
        message for message in messages if message.startswith("torch.cuda.synchronize in compiled code")
    ]
    assert __file__ in line


def test_an_error_of_a_compiled_line_is_that_of_the_line() -> None:
    with (
        flroute.enable(alias=("cuda",)),
        pytest.raises(DeviceError, match="cuda:7 does not exist"),
    ):
        compiled(lambda x: torch.empty(3, device="cuda:7") + x)[0](torch.ones(3, device="cuda"))


# Where the code stands ----------------------------------------------------------------------------------------------


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2 if x.is_cuda else x * 3

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * 5 if grad.is_cuda and x.device.type == "cuda" else grad * 7


class Layer(torch.nn.Module):
    def __init__(self, says: Callable[[torch.Tensor], bool]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), 2.0))
        self.says = says

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = torch.arange(3, device=self.weight.device)
        return x * self.weight + bias if self.says(self.weight) else x - bias


def _looped(says: Any, x: torch.Tensor) -> torch.Tensor:
    for times in range(3):
        if times == 1:
            torch._dynamo.graph_break()
        x = x * (2 if says(x) else 3)
    return x


def _raised(says: Any, x: torch.Tensor) -> torch.Tensor:
    try:
        if not says(x):
            raise ValueError  # noqa: TRY301 -- as people write it
    except ValueError:
        return x * 3
    return x * 2


def _checkpointed(says: Any, x: torch.Tensor) -> torch.Tensor:
    def part(x: torch.Tensor) -> torch.Tensor:
        return x.sin() if says(x) else x.cos()

    return torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False)  # type: ignore[no-any-return]


def _hooked(says: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.register_hook(lambda grad: grad * 5 if says(grad) else grad * 7)
    return y * 3


PLACES: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "branch": lambda says, x: x * 2 if says(x) else x * 3,
    "module": lambda says, x: Layer(says).to(x.device)(x),
    "function of autograd": lambda _, x: Twice.apply(x),  # type: ignore[no-untyped-call]
    "hook": _hooked,
    "loop with a break": _looped,
    "try": _raised,
    "checkpoint": _checkpointed,
    "transform": lambda says, x: torch.func.grad(lambda t: (t * 2 if says(t) else t * 3).sum())(x.detach()) + x,
    "vmap": lambda says, x: torch.func.vmap(lambda t: t * 2 if says(t) else t * 3)(x),
    "cond": lambda says, x: torch.cond(
        x.sum() > 1, lambda t: t * 2 if says(t) else t * 3, lambda t: t * 4 if says(t) else t * 5, (x,)
    ),
}  # fmt: skip
OF_ANY_TENSOR = sorted({*SAYS_CUDA} - {"of a view", "of a parameter", "old type", "there and back"})


def values(function: Function) -> list[Any]:
    x = torch.arange(3.0).cuda().requires_grad_()
    y = function(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    return [y.device, y.tolist(), grad.device, grad.tolist()]


@pytest.mark.parametrize("place", PLACES)
@settings(max_examples=2, deadline=None)
@given(questions=st.lists(st.sampled_from(OF_ANY_TENSOR), min_size=1, max_size=4))
def test_wherever_it_asks_forward_and_backward(place: str, questions: list[str]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return PLACES[place](lambda t: all(SAYS_CUDA[question](t) for question in questions), x)

    torch.compiler.reset()
    with flroute.enable(alias=("cuda",)):
        assert values(compiled(function)[0]) == values(function)


# What cuda means, and when ------------------------------------------------------------------------------------------


def _branch(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.device.type == "cuda" else x * 3


def _where_it_lands(_: torch.Tensor) -> torch.Tensor:
    return torch.ones(3, device="cuda") if torch.cuda.is_available() else torch.zeros(3)


@pytest.mark.parametrize("first_inside", [True, False])
def test_code_is_for_what_cuda_meant_to_it(first_inside: bool) -> None:
    function, backend = compiled(_branch)
    x = torch.ones(2, device="fl")

    def inside() -> list[float]:
        with flroute.enable(alias=("cuda",)):
            return function(x).tolist()  # type: ignore[no-any-return]

    if first_inside:
        assert inside() == [2, 2]
    assert function(x).tolist() == [3, 3]
    for _ in range(10):
        assert inside() == [2, 2]
    with flroute.enable():
        assert function(x).tolist() == [3, 3]
    assert function(x).tolist() == [3, 3]
    assert len(backend.graphs) == 3  # of no session, of one, and of one with the alias


def test_it_follows_the_device_that_cuda_means() -> None:
    function, _ = compiled(_where_it_lands)
    number, _ = compiled(lambda x: x * 0 + x.get_device())
    x = torch.ones(1)

    def where() -> int:
        return int(repr(function(x)).partition("fl:")[2][0])  # which PyTorch prints, and so the truth

    with flroute.enable(device="reference:0", alias=("cuda",)):
        assert where() == 0
        with flroute.enable(device="reference:1", alias=("cuda",)):
            assert where() == 1
            assert number(torch.ones(1, device="fl:0")).tolist() == [1]
        assert where() == 0
        assert number(torch.ones(1, device="fl:0")).tolist() == [0]
        with torch.cuda.device(1):
            assert where() == 1
        torch.cuda.set_device(1)
        assert where() == 1
        torch.cuda.set_device(0)
        assert where() == 0
    assert function(x).device.type == "cpu"


def test_threads_are_told_what_they_would_hear() -> None:
    function, _ = compiled(_where_it_lands)
    found: list[str] = []

    def work() -> None:
        found.append(function(torch.ones(1)).device.type)

    def in_a_thread() -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    with flroute.enable(alias=("cuda",)):
        work()
        in_a_thread()
    in_a_thread()
    assert found == ["cuda", "cuda", "cpu"]


class Counted(torch.overrides.TorchFunctionMode):
    """A mode of the user's, which reads devices."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result.clone() if isinstance(result, torch.Tensor) and not result.is_cuda else result


class Subclass(torch.Tensor):
    """A subclass of the user's."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


def test_modes_subclasses_and_default_devices_of_the_users() -> None:
    function, backend = compiled(_branch)
    of_subclasses = torch.compile(_branch, backend="eager", fullgraph=True)
    with flroute.enable(alias=("cuda",)):
        x = torch.ones(2, device="cuda")
        with Counted():
            assert function(x).tolist() == [2, 2]
        found = of_subclasses(x.as_subclass(Subclass))
        assert (type(found), found.tolist()) == (Subclass, [2, 2])
    with flroute.enable(alias=("cuda",), default_device=True):
        made, _ = compiled(lambda x: torch.ones(2) + x if x.is_cuda else x)
        assert made(torch.ones(2)).tolist() == [2, 2]
    assert len(backend.graphs) == 1


# Backends -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"mode": "reduce-overhead", "fullgraph": True}, {"backend": "cudagraphs"}, {"dynamic": True}],
)
def test_backends_for_other_hardware_run_op_by_op(options: dict[str, Any]) -> None:
    with flroute.enable(alias=("cuda",)):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).cuda()
        x = torch.randn(5, 3).cuda()
        expected = model(x)
        expected.sum().backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        model.zero_grad()
        model.compile(**options)
        found = model(x)
        found.sum().backward()
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close([parameter.grad for parameter in model.parameters()], gradients)


def test_what_is_compiled_is_counted_where_it_was_read() -> None:
    function, _ = compiled(_branch)
    with flroute.enable(alias=("cuda",)) as session:
        function(torch.ones(2, device="fl"))
    line = _branch.__code__.co_firstlineno + 1
    assert ("Tensor.device", f"{__file__}:{line}", 1) in {
        (u.name, u.site, u.calls) for u in session.redirected
    }


# Afterwards ---------------------------------------------------------------------------------------------------------


def in_dynamo() -> dict[str, Any]:
    """The attributes of Dynamo's that flroute relies on, as their owners hold them."""
    return {
        dotted: vars(find(owner)).get(name)
        for dotted in DYNAMO_NAMES
        if isinstance(find(owner := dotted.rpartition(".")[0]), type) and (name := dotted.rpartition(".")[2])
    }


def test_nothing_stays_in_dynamo() -> None:
    before = in_dynamo()
    assert len(before) > 10
    with flroute.enable(alias=("cuda",)):
        assert sum(value is not before[name] for name, value in in_dynamo().items()) >= 14
        with pytest.raises(DeviceError):
            compiled(lambda x: torch.ones(2, device="cuda:7") + x)[0](torch.ones(2, device="cuda"))
    assert [name for name, value in in_dynamo().items() if value is not before[name]] == []


def test_functions_of_the_users_keep_their_code() -> None:
    other, backend = compiled(lambda x: x + 1)
    other(torch.ones(2))
    with flroute.enable(alias=("cuda",)):
        compiled(_branch)[0](torch.ones(2, device="cuda"))
    other(torch.ones(2))
    assert len(backend.graphs) == 1


IMPORTED_INSIDE = """
import sys, torch, flroute
graphs = []
def backend(graph, _):
    graphs.append(graph)
    return graph.forward
def finders():
    return [type(finder).__name__ for finder in sys.meta_path]
def function(x):
    return x * 2 if torch.cuda.is_available() and x.is_cuda else x * 3
with flroute.enable(alias=("cuda",)):
    assert "torch._dynamo" not in sys.modules
    assert "_DynamoFinder" in finders()
    inside = torch.compile(function, backend=backend)(torch.ones(2, device="cuda")).tolist()
assert "_DynamoFinder" not in finders()
outside = torch.compile(function, backend=backend, fullgraph=True)(torch.ones(2, device="fl")).tolist()
print(inside, outside, len(graphs))
"""


def test_dynamo_may_be_imported_inside() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED_INSIDE], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.stdout.split("\n")[0] == "[2.0, 2.0] [3.0, 3.0] 2", done.stderr


def test_where_pytorch_lacks_a_name_code_runs_as_it_stands(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(traced, "dynamo_names_that_lack", lambda: ["torch._dynamo.gone"])
    function, backend = compiled(_branch)
    with caplog.at_level(logging.INFO, logger="flroute"), flroute.enable(alias=("cuda",)):
        assert function(torch.ones(2, device="cuda")).tolist() == [2, 2]
    assert "runs eagerly while cuda means the device: this PyTorch has no torch._dynamo.gone" in caplog.text
    assert backend.graphs == []
    assert function(torch.ones(2, device="fl")).tolist() == [3, 3]
    assert len(backend.graphs) == 1
