"""The registry: what vendors bring is checked, and what breaks a rule is named, skipped and listed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest
import torch

import flroute
from flroute import registry
from flroute.kernel_rules import broken_kernel_rule, definition_of
from flroute.registry import Registry
from flroute.vendor import DeviceFacts, HostMemory, Kernel, Vendor, hookimpl
from support import Plugin, Vendors, decision_of, make_vendor_object, named, throw_away_vendors, unique

vendors = pytest.fixture(throw_away_vendors)


def add(a: Any, b: Any, *, alpha: Any = 1) -> Any:
    return a + alpha * b


def relu(x: Any) -> Any:
    return np.maximum(x, 0)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry]:
    """Loads a registry of its own from entry points, as the first use of flroute does."""

    def load(**plugins: Any) -> Registry:
        return registry._load([_entry(name, plugin) for name, plugin in plugins.items()])

    return load


def _entry(name: str, plugin: Any) -> EntryPoint:
    class Entry(EntryPoint):  # an EntryPoint refuses new attributes on an instance
        def load(self) -> Any:
            if isinstance(plugin, Exception):
                raise plugin
            return plugin

    return Entry(name=name, value=f"{name}_package", group="flroute")


# -- kernels -------------------------------------------------------------------------------------------------------


def test_a_vendor_is_printed_without_its_kernels() -> None:
    (vendor,) = (v for v in flroute.vendors() if v.name == "reference")
    assert vendor.kernels
    assert "Kernel(" not in repr(vendor)


def test_a_kernel_that_follows_the_schema_breaks_no_rule() -> None:
    assert broken_kernel_rule(Kernel("aten::add.Tensor", add)) is None
    assert broken_kernel_rule(Kernel("aten::relu", relu)) is None


def no_alpha(a: Any, b: Any) -> Any: ...
def too_few(a: Any, *, alpha: Any = 1) -> Any: ...
def too_many(a: Any, b: Any, c: Any, *, alpha: Any = 1) -> Any: ...
def wrong_name(a: Any, b: Any, *, scale: Any = 1) -> Any: ...
def wrong_default(a: Any, b: Any, *, alpha: Any = 2) -> Any: ...
def default_of_another_type(a: Any, b: Any, *, alpha: Any = True) -> Any: ...
def no_default(a: Any, b: Any, *, alpha: Any) -> Any: ...
def a_default_too_many(a: Any, b: Any = 0, *, alpha: Any = 1) -> Any: ...
def any_positional(*args: Any, alpha: Any = 1) -> Any: ...
def any_keyword(a: Any, b: Any, **kwargs: Any) -> Any: ...
def alpha_by_position(a: Any, b: Any, alpha: Any = 1) -> Any: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (no_alpha, "keyword-only arguments []"),
        (too_few, "takes 1 positional"),
        (too_many, "takes 3 positional"),
        (wrong_name, "['scale']"),
        (wrong_default, "'alpha' must have the default of the schema, 1"),
        (default_of_another_type, "'alpha' must have the default of the schema, 1"),
        (no_default, "'alpha' must have the default"),
        (a_default_too_many, "'b' must have the default of the schema, none"),
        (any_positional, "*args and **kwargs"),
        (any_keyword, "*args and **kwargs"),
        (alpha_by_position, "takes 3 positional"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_signature_that_does_not_fit_the_schema(function: Callable[..., Any], words: str) -> None:
    rule = broken_kernel_rule(Kernel("aten::add.Tensor", function))
    assert rule is not None
    assert words in rule
    assert function.__name__ in rule
    assert "add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor" in rule, (
        "it quotes the schema"
    )


def test_sequence_defaults_compare_as_sequences() -> None:
    def mean(x: Any, dim: Any = (0,), keepdim: Any = False) -> Any: ...
    def pool(
        x: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: Any = False
    ) -> Any: ...

    assert "'stride'" not in (broken_kernel_rule(Kernel("aten::max_pool2d", pool)) or "")
    assert "'dim'" in (broken_kernel_rule(Kernel("aten::amax", mean)) or "")


@pytest.mark.parametrize(
    "op", ["aten::no_such_op", "aten::add.Nothing", "no_such_library::add", "relu", "aten::", ""]
)
def test_an_unknown_op(op: str) -> None:
    rule = broken_kernel_rule(Kernel(op, relu))
    assert rule is not None
    assert repr(op) in rule


def test_an_unknown_overload_lists_those_there_are() -> None:
    assert "aten::add.Tensor" in str(broken_kernel_rule(Kernel("aten::add.Nothing", add)))
    rule = str(broken_kernel_rule(Kernel("aten::index_fill", add)))  # has no default overload
    assert "aten::index_fill.int_Scalar" in rule


def test_two_kernels_of_one_name(vendors: Vendors) -> None:
    with pytest.raises(flroute.VendorError, match="two kernels named 'python:relu'"):
        vendors(Kernel("aten::relu", relu), Kernel("aten::relu", named("relu", lambda x: x)))


def test_two_kernels_of_one_name_for_two_spellings_of_one_op(vendors: Vendors) -> None:
    with pytest.raises(flroute.VendorError, match="two kernels named 'python:relu'"):
        vendors(Kernel("aten::relu", relu), Kernel("aten::relu.default", named("relu", lambda x: x)))


def test_one_function_may_serve_two_ops_or_two_implementations(vendors: Vendors) -> None:
    made = vendors(
        Kernel("aten::relu", relu),
        Kernel("aten::relu6", relu),
        Kernel("aten::relu", relu, implementation="other"),
    )
    served = {op: len(registry.load().candidates(made.name, op)) for op in ("aten::relu", "aten::relu6")}
    assert served == {"aten::relu": 2, "aten::relu6": 1}


def test_an_unknown_op_is_a_coverage_fact_not_a_broken_vendor(load: Callable[..., Registry]) -> None:
    name = unique("maker")
    vendor = make_vendor_object(name, Kernel("aten::of_the_future", relu), Kernel("aten::relu", relu))
    found = load(future=Plugin(vendor))
    assert found.unknown_ops == [f"{name}: aten::of_the_future"]
    assert not found.problems
    assert [kernel.op for kernel in found.candidates(name, "aten::relu")] == ["aten::relu"]


def test_an_unknown_op_does_not_stop_a_vendor_that_joins_later(vendors: Vendors) -> None:
    made = vendors(Kernel("aten::of_the_future", relu), Kernel("aten::relu", relu))
    assert f"{made.name}: aten::of_the_future" in registry.load().unknown_ops
    assert registry.load().candidates(made.name, "aten::relu")


def test_a_broken_kernel_is_skipped_alone(load: Callable[..., Registry]) -> None:
    name = unique("maker")
    vendor = make_vendor_object(name, Kernel("aten::add.Tensor", relu), Kernel("aten::relu", relu))
    found = load(broken=Plugin(vendor))
    assert list(found.vendors) == [name]
    assert not found.candidates(name, "aten::add.Tensor")
    assert found.candidates(name, "aten::relu")
    (problem,) = found.problems
    assert (problem.plugin, problem.hook) == ("broken", "flroute_vendors")
    assert problem.definition == f"{__file__}:{relu.__code__.co_firstlineno}"
    assert "takes 1 positional arguments, aten::add.Tensor has 2" in problem.rule
    assert all(
        part in str(problem) for part in (problem.plugin, problem.hook, problem.definition, problem.rule)
    )


def test_a_predicate_that_raises_is_the_vendors_error_in_four_parts(vendors: Vendors) -> None:
    def choosy(x: torch.Tensor) -> bool:
        raise ZeroDivisionError("in the predicate")

    made = vendors(Kernel("aten::relu", relu, when=choosy))
    with flroute.enable(made.name, fallback="allow"):
        x = torch.empty(3)
        with pytest.raises(flroute.VendorError, match="in the predicate") as caught:
            torch.relu(x)
    error = caught.value
    assert (error.plugin, error.hook) == (f"{made.name}/python:relu", "when")
    assert error.definition == f"{__file__}:{choosy.__code__.co_firstlineno}"
    assert "aten::relu" in error.rule
    assert isinstance(error.__cause__, ZeroDivisionError)


class ChoosyObject:
    def __call__(self, x: torch.Tensor) -> bool:
        raise ZeroDivisionError("in the predicate")


@pytest.mark.parametrize(
    "choosy", [ChoosyObject(), functools.partial(lambda _, x: 1 / 0, None)], ids=["object", "partial"]
)
def test_a_predicate_that_raises_need_not_be_a_plain_function(choosy: Any, vendors: Vendors) -> None:
    made = vendors(Kernel("aten::relu", relu, when=choosy))
    with flroute.enable(made.name, fallback="allow"):
        x = torch.empty(3)
        with pytest.raises(flroute.VendorError, match="ZeroDivisionError"):
            torch.relu(x)


# -- vendors -------------------------------------------------------------------------------------------------------


def _with(**facts: Any) -> Vendor:
    good: dict[str, Any] = {
        "name": unique("maker"), "version": "1", "devices": (DeviceFacts("One", 1),), "memory": HostMemory(),
    }  # fmt: skip
    return Vendor(**{**good, **facts})


class Broken:
    """Kernels that raise when they are asked for."""

    def __iter__(self) -> Iterator[Kernel]:
        raise ZeroDivisionError("no kernels today")


GARBAGE = {
    "no vendor": ("a string", "must yield Vendor objects, it yielded 'a string'"),
    "no devices": (_with(devices=()), "has no devices"),
    "devices are words": (_with(devices=("One",)), "devices must be DeviceFacts"),
    "memory is a word": (_with(memory="lots"), "memory must implement"),
    "memory is a class": (_with(memory=HostMemory), "memory must implement"),
    "name in capitals": (_with(name="Acme"), "lower-case identifier, got 'Acme'"),
    "name with a colon": (_with(name="acme:0"), "lower-case identifier"),
    "name with a slash": (_with(name="acme/one"), "lower-case identifier"),
    "name is a number": (_with(name=3), "lower-case identifier, got 3"),
    "empty name": (_with(name=""), "lower-case identifier"),
    "kernel is a function": (_with(kernels=(relu,)), "kernels must be Kernel objects"),
    "kernel of no function": (_with(kernels=(Kernel("aten::relu", 5),)), "function"),
    "kernel without a signature": (_with(kernels=(Kernel("aten::neg", max),)), "wrap it in a def"),
    "kernel with another's signature": (_with(kernels=(Kernel("aten::neg", np.negative),)), "negative"),
    "kernels that raise": (_with(kernels=Broken()), "ZeroDivisionError"),
    "no kernels at all": (_with(kernels=None), "kernels"),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_is_named_skipped_and_listed(what: str, load: Callable[..., Registry]) -> None:
    garbage, words = GARBAGE[what]
    good = _with()
    found = load(rubbish=Plugin(garbage), sound=Plugin(good))
    assert good.name in found.vendors
    (problem,) = found.problems
    assert (problem.plugin, problem.hook) == ("rubbish", "flroute_vendors")
    assert words in problem.rule
    assert problem.definition


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_is_refused_when_a_vendor_joins_later(what: str, vendors: Vendors) -> None:
    garbage, words = GARBAGE[what]
    name = unique("rubbish")
    before = (list(registry.load().vendors), list(registry.load().problems), flroute.devices())
    with pytest.raises(flroute.VendorError) as caught:
        vendors.register(Plugin(garbage), name)
    assert words in caught.value.rule
    assert (list(registry.load().vendors), list(registry.load().problems), flroute.devices()) == before
    assert not registry.load().manager.has_plugin(name), "nothing of it stays registered"


class Answers:
    """A plugin whose hook answers as it is told."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    @hookimpl
    def flroute_vendors(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    "answer",
    [None, 5, _with(), [None], OSError("no driver")],
    ids=["nothing", "a number", "a vendor not in a list", "a list of nothing", "an error"],
)
def test_a_hook_that_answers_nonsense(answer: Any, load: Callable[..., Registry]) -> None:
    good = _with()
    found = load(nonsense=Answers(answer), sound=Plugin(good))
    assert list(found.vendors) == [good.name]
    if answer is None:  # pluggy drops None: the hook had nothing to say
        return
    (problem,) = found.problems
    assert (problem.plugin, problem.hook) == ("nonsense", "flroute_vendors")


def test_a_hook_of_the_wrong_signature(load: Callable[..., Registry]) -> None:
    class Wrong:
        @hookimpl
        def flroute_vendors(self, nonsense: Any) -> Any: ...

    good = _with()
    found = load(wrong=Wrong(), sound=Plugin(good))
    assert list(found.vendors) == [good.name]
    (problem,) = found.problems
    assert problem.plugin == "wrong"
    assert "nonsense" in problem.rule


def test_a_vendor_that_is_already_there(load: Callable[..., Registry], vendors: Vendors) -> None:
    vendor = _with()
    found = load(first=Plugin(vendor), second=Plugin(vendor))
    assert list(found.vendors) == [vendor.name]
    (problem,) = found.problems
    assert problem.plugin == "second"
    assert f"vendor {vendor.name!r} is already there" in problem.rule
    with pytest.raises(flroute.VendorError, match="'reference' is already there"):
        vendors.register(Plugin(_with(name="reference")))
    assert flroute.device("reference:0") == torch.device("fl:0")


def test_two_plugins_of_one_name(vendors: Vendors) -> None:
    made = vendors()
    with pytest.raises(flroute.VendorError, match="already registered") as caught:
        vendors.register(Plugin(_with()), made.name)
    assert caught.value.plugin == made.name
    assert flroute.device(made.name) == made.device


def test_one_plugin_may_bring_two_vendors(vendors: Vendors) -> None:
    first, second = _with(), _with(devices=(DeviceFacts("A", 1), DeviceFacts("B", 1)))
    start = torch.fl.device_count()
    devices = vendors.register(Plugin(first, second))
    assert [device.vendor_device for device in devices] == [
        f"{first.name}:0",
        f"{second.name}:0",
        f"{second.name}:1",
    ]
    assert [device.index for device in devices] == [start, start + 1, start + 2]


def test_the_good_vendor_of_a_refused_plugin_is_gone_too(vendors: Vendors) -> None:
    good = _with()
    with pytest.raises(flroute.VendorError):
        vendors.register(Plugin(good, "rubbish"))
    assert good.name not in registry.load().vendors
    with pytest.raises(flroute.UnknownVendorError):
        flroute.enable(good.name)


# -- packages that fail to import ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [ImportError("libacme.so: no such file"), RuntimeError("no licence"), SyntaxError("?")]
)
def test_a_package_that_fails_to_import_is_named_and_skipped(
    error: Exception, load: Callable[..., Registry]
) -> None:
    good = _with()
    found = load(acme=error, sound=Plugin(good))
    assert list(found.vendors) == [good.name]
    (problem,) = found.problems
    assert (problem.plugin, problem.hook, problem.definition) == ("acme", "import", "acme_package")
    assert type(error).__name__ in problem.rule
    assert str(error) in problem.rule


def test_flroute_works_beside_a_package_that_fails_to_import(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = registry.load().vendors["reference"]
    broken, entry = (
        _entry("acme", ImportError("libacme.so: no such file")),
        _entry("reference", Plugin(sound)),
    )
    monkeypatch.setattr(registry, "entry_points", lambda group: [broken, entry] if group == "flroute" else [])
    monkeypatch.setattr(registry, "_registry", None)
    with flroute.enable("reference") as session:
        assert torch.relu(torch.full((2,), -1.0)).tolist() == [0, 0]
    assert decision_of(session, "aten::relu").route == "native"
    assert [problem.plugin for problem in registry.load().problems] == ["acme"]
    with pytest.raises(flroute.UnknownVendorError, match=r"libacme\.so") as caught:
        flroute.enable("acme")
    assert "reference" in str(caught.value)


def test_the_default_vendor_is_numbered_first(
    load: Callable[..., Registry], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["aaa", "mmm", "zzz"]
    plugins = {name: Plugin(_with(name=name)) for name in names}
    monkeypatch.setenv("FLROUTE_DEFAULT_VENDOR", "mmm")
    assert list(load(**plugins).vendors) == ["mmm", "aaa", "zzz"]
    monkeypatch.setenv("FLROUTE_DEFAULT_VENDOR", "zzz")
    assert list(load(**plugins).vendors) == ["zzz", "aaa", "mmm"]


# -- kernels for another vendor ----------------------------------------------------------------------------------------


class Extra:
    """A plugin with kernels for someone else's vendor."""

    def __init__(self, vendor: str, *kernels: Any) -> None:
        self.vendor, self.kernels = vendor, kernels

    @hookimpl
    def flroute_kernels(self, vendor: str) -> Any:
        return self.kernels if vendor == self.vendor else ()


def names(vendor: str, op: str) -> list[str]:
    return [kernel.function.__name__ for kernel in registry.load().candidates(vendor, op)]


def test_extra_kernels_come_before_the_vendors_own_in_their_own_order(vendors: Vendors) -> None:
    made = vendors(Kernel("aten::relu", named("own", lambda x: np.maximum(x, 0))))
    first, second = named("first", lambda x: np.maximum(x, 0)), named("second", lambda x: x)
    vendors.register(Extra(made.name, Kernel("aten::relu", first), Kernel("aten::relu", second)))
    assert names(made.name, "aten::relu") == ["first", "second", "own"]
    with flroute.enable(made.name, fallback="error", default_device=False) as session:
        torch.relu(made.put(torch.ones(2)))
    assert decision_of(session, "aten::relu").kernel == f"{made.name}/python:first"


def test_extra_kernels_are_taken_once(vendors: Vendors) -> None:
    made = vendors(Kernel("aten::relu", relu))
    vendors.register(Extra(made.name, Kernel("aten::relu.default", named("extra", lambda x: x))))
    vendors()  # another vendor: extra kernels are asked for again
    assert names(made.name, "aten::relu") == ["extra", "relu"]


def test_extra_kernels_are_taken_when_the_vendor_comes_after_them(vendors: Vendors) -> None:
    name = unique("maker")
    vendors.register(Extra(name, Kernel("aten::relu", named("extra", lambda x: x))))
    vendors(Kernel("aten::relu", relu), name=name)
    assert names(name, "aten::relu") == ["extra", "relu"]


def test_an_open_session_sees_extra_kernels_at_once(vendors: Vendors) -> None:
    made = vendors(Kernel("aten::relu", relu))
    with flroute.enable(made.name, fallback="allow", default_device=False) as session:
        x = made.put(torch.ones(2))
        torch.relu(x)
        vendors.register(Extra(made.name, Kernel("aten::relu", named("extra", lambda x: np.maximum(x, 0)))))
        torch.relu(x)
    kernels = [d.kernel for d in session.decisions if d.op == "aten::relu"]
    assert kernels == [f"{made.name}/python:relu", f"{made.name}/python:extra"]


def test_calls_outside_a_session_see_extra_kernels_at_once(vendors: Vendors) -> None:
    made = vendors(Kernel("aten::relu", named("own", lambda x: np.maximum(x, 0))))
    x = made.put(torch.ones(2))
    assert torch.relu(x).tolist() == [1, 1]
    vendors.register(Extra(made.name, Kernel("aten::relu", named("extra", lambda x: np.full_like(x, 7)))))
    assert torch.relu(x).tolist() == [7, 7]


def test_a_broken_extra_kernel_is_the_bringers_problem(vendors: Vendors) -> None:
    made = vendors(Kernel("aten::relu", relu))
    good, bad = Kernel("aten::relu", named("good", lambda x: x)), Kernel("aten::add.Tensor", relu)
    with pytest.raises(flroute.VendorError) as caught:
        vendors.register(Extra(made.name, good, bad), "bringer")
    assert (caught.value.plugin, caught.value.hook) == ("bringer", "flroute_kernels")
    assert names(made.name, "aten::relu") == ["relu"], "nothing of a refused plugin stays registered"


def test_an_extra_kernel_named_like_the_vendors_own_is_its_bringers_problem(vendors: Vendors) -> None:
    made = vendors(Kernel("aten::relu", relu))
    with pytest.raises(flroute.VendorError) as caught:
        vendors.register(Extra(made.name, Kernel("aten::relu", named("relu", lambda x: x))), "bringer")
    assert (caught.value.plugin, caught.value.hook) == ("bringer", "flroute_kernels")
    assert caught.value.rule.startswith(
        f"the kernel 'python:relu' that plugin 'bringer' brings to vendor {made.name!r} for aten::relu has the name of one "
        f"of the vendor's own, at {definition_of(relu)}"
    )
    assert "Rename its function, or give it another implementation than 'python'." in caught.value.rule
    assert names(made.name, "aten::relu") == ["relu"]
    with flroute.enable(made.name, fallback="error", default_device=False):
        assert torch.relu(made.put(-torch.ones(2))).cpu().tolist() == [0, 0], "the vendor's own"
    other = Kernel("aten::relu", named("relu", lambda x: x), implementation="mine")
    vendors.register(Extra(made.name, other))
    assert names(made.name, "aten::relu") == ["relu", "relu"], "another implementation is another name"


def test_an_extra_kernel_named_like_another_plugins_says_whose(vendors: Vendors) -> None:
    made = vendors()
    vendors.register(Extra(made.name, Kernel("aten::relu", relu)), unique("first"))
    for _ in range(5):  # the one that came later is wrong, whatever the order of a set
        vendors.register(Extra(made.name), unique("other"))
    with pytest.raises(
        flroute.VendorError, match=r"brings to vendor .* has the name of one of those of plugin 'first_\d+'"
    ):
        vendors.register(Extra(made.name, Kernel("aten::relu", named("relu", lambda x: x))), "second")


def test_a_vendor_that_comes_after_a_plugin_with_its_kernels_name_is_not_refused_for_it(
    vendors: Vendors,
) -> None:
    name = unique("late")
    known = len(registry.load().problems)
    vendors.register(Extra(name, Kernel("aten::relu", named("relu", lambda x: x))), "early")
    made = vendors(Kernel("aten::relu", relu), name=name)
    assert [kernel.function for kernel in registry.load().candidates(made.name, "aten::relu")] == [relu]
    (problem,) = registry.load().problems[known:]
    assert (problem.plugin, problem.hook) == ("early", "flroute_kernels")
    del registry.load().problems[known:]


def test_extra_kernels_that_raise_or_are_nonsense(load: Callable[..., Registry]) -> None:
    class Raises:
        @hookimpl
        def flroute_kernels(self, vendor: str) -> Iterator[Kernel]:
            raise OSError("no driver")

    vendor = _with(kernels=(Kernel("aten::relu", relu),))
    found = load(maker=Plugin(vendor), raises=Raises(), nonsense=Extra(vendor.name, "a word"))
    assert [kernel.op for kernel in found.candidates(vendor.name, "aten::relu")] == ["aten::relu"]
    problems = {problem.plugin: problem for problem in found.problems}
    assert set(problems) == {"raises", "nonsense"}
    assert len(found.problems) == 2, "named once each"
    assert "no driver" in problems["raises"].rule
    assert "'a word'" in problems["nonsense"].rule
    assert all(problem.hook == "flroute_kernels" for problem in found.problems)


# -- hooks that watch and order ----------------------------------------------------------------------------------------


class Orders:
    """A plugin that orders candidates as ``answer(candidates)`` says."""

    def __init__(self, answer: Callable[[list[str]], Any]) -> None:
        self.answer, self.asked = answer, []  # type: ignore[var-annotated]

    @hookimpl
    def flroute_candidate_order(self, op: str, device: str, candidates: Any) -> Any:
        self.asked.append((op, device, list(candidates)))
        return self.answer(list(candidates)) if op == "aten::relu" else None


@pytest.fixture
def two_relus(vendors: Vendors) -> Any:
    slow, fast = named("slow", lambda x: np.maximum(x, 0)), named("fast", lambda x: np.maximum(x, 0))
    return vendors(Kernel("aten::relu", slow), Kernel("aten::relu", fast))


def test_candidate_order_is_asked_when_a_route_is_resolved_and_decides(
    vendors: Vendors, two_relus: Any
) -> None:
    orders = Orders(lambda candidates: candidates[::-1])
    vendors.register(orders)
    with flroute.enable(two_relus.name, fallback="error", default_device=False) as session:
        x = two_relus.put(torch.ones(3))
        for _ in range(5):
            torch.relu(x)
    name = two_relus.name
    assert [asked for asked in orders.asked if asked[0] == "aten::relu"] == [
        ("aten::relu", str(two_relus.device), [f"{name}/python:slow", f"{name}/python:fast"])
    ], "once, not per call"
    decision = decision_of(session, "aten::relu")
    assert (decision.kernel, decision.calls) == (f"{name}/python:fast", 5)


def test_candidate_order_none_leaves_the_order_to_others(vendors: Vendors, two_relus: Any) -> None:
    vendors.register(Orders(lambda candidates: candidates[::-1]))
    vendors.register(Orders(lambda candidates: None))
    with flroute.enable(two_relus.name, fallback="error", default_device=False) as session:
        torch.relu(two_relus.put(torch.ones(3)))
    assert decision_of(session, "aten::relu").kernel == f"{two_relus.name}/python:fast"


def test_what_candidate_order_leaves_out_is_recorded(vendors: Vendors, two_relus: Any) -> None:
    vendors.register(Orders(lambda candidates: [candidates[1]]))
    with flroute.enable(two_relus.name, fallback="error", default_device=False) as session:
        torch.relu(two_relus.put(torch.ones(3)))
    decision = decision_of(session, "aten::relu")
    assert decision.kernel == f"{two_relus.name}/python:fast"
    assert [(r.kernel, r.reason) for r in decision.rejected] == [(f"{two_relus.name}/python:slow", "policy")]


@pytest.mark.parametrize("answer", [5, "word", [3]], ids=repr)
def test_candidate_order_that_answers_nonsense_is_the_plugins_error(
    answer: Any, vendors: Vendors, two_relus: Any
) -> None:
    vendors.register(Orders(lambda candidates: answer), "nonsense")
    with flroute.enable(two_relus.name, fallback="error", default_device=False):
        x = two_relus.put(torch.ones(3))
        with pytest.raises(flroute.VendorError, match="flroute_candidate_order"):
            torch.relu(x)


class Watches:
    """A plugin that observes decisions."""

    def __init__(self) -> None:
        self.seen: list[flroute.Decision] = []

    @hookimpl
    def flroute_decision_taken(self, decision: flroute.Decision) -> None:
        self.seen.append(decision)


def test_each_decision_is_observed_once_when_first_taken(vendors: Vendors) -> None:
    watches = Watches()
    vendors.register(watches)
    with flroute.enable("reference", fallback="allow") as session:
        for dtype in (torch.float32, torch.float64):
            for _ in range(4):
                torch.relu(torch.ones(3, dtype=dtype))
        torch.erfinv(torch.ones(3))
    seen = [decision for decision in watches.seen if decision.op in ("aten::relu", "aten::erfinv")]
    assert [(d.op, d.route, d.dtypes) for d in seen] == [
        ("aten::relu", "native", ("float32",)),
        ("aten::relu", "native", ("float64",)),
        ("aten::erfinv", "fallback", ("float32",)),
    ]
    assert [(d.op, d.route, d.kernel) for d in watches.seen] == [
        (d.op, d.route, d.kernel) for d in session.decisions
    ]


def test_a_candidate_that_declines_is_not_observed_as_a_decision(vendors: Vendors) -> None:
    def declines(x: Any) -> Any:
        raise flroute.Unsupported("never")

    watches = Watches()
    vendors.register(watches)
    made = vendors(Kernel("aten::relu", declines), Kernel("aten::relu", relu))
    with flroute.enable(made.name, fallback="error", default_device=False) as session:
        torch.relu(made.put(torch.ones(3)))
    assert [d.kernel for d in watches.seen if d.op == "aten::relu"] == [
        decision_of(session, "aten::relu").kernel
    ]
