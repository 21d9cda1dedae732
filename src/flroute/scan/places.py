"""Where a string stands, and so whether it names a device: ``device="cuda"`` does, ``print("cuda")`` does not.

``"cuda"`` is also a word, and counts where something around it says that a device is meant: a parameter, a target, a key, the
other side of a comparison. ``"cuda:1"`` and ``f"cuda:{rank}"`` are nothing else, and count wherever they are not shown to people.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import libcst as cst

from flroute.scan.bindings import Bindings, dotted_name

_DEVICE_NAME = re.compile(r"device|accelerator|location|(^|[_-])dev([_-]|\d|$)", re.IGNORECASE)
_BACKEND_NAME = re.compile(r"backend", re.IGNORECASE)
_TALK = {
    "print", "debug", "info", "warning", "warn", "error", "critical", "exception", "log", "write", "getLogger", "fail", "skip",
}  # fmt: skip
_LOOKUPS = {"get", "pop", "setdefault", "getenv", "getattr", "setattr", "parametrize"}
_DECLARATIONS = {"add_argument", "Option", "Argument", "option", "argument", "Field", "field"}
_NOT_ABOUT_DEVICES = ("torch.save", "torch.ops", "torch.library", "torch.hub")


class Place(Enum):
    """What a string stands for where it stands."""

    DEVICE = auto()
    CHECK = auto()  #: compared with a device
    MAP_LOCATION = auto()
    AUTOCAST = auto()
    GENERATOR = auto()
    BACKEND = auto()  #: of torch.distributed
    BACKEND_CHECK = auto()
    NOTHING = auto()


@dataclass(frozen=True)
class _Search:
    """What is looked for, and where: one level of what a string stands in."""

    names: Bindings
    above: Sequence[cst.CSTNode]
    backend: bool

    @property
    def said(self) -> re.Pattern[str]:
        return _BACKEND_NAME if self.backend else _DEVICE_NAME

    @property
    def here(self) -> Place:
        return Place.BACKEND if self.backend else Place.DEVICE

    def if_so(self, so: bool) -> Place:
        return self.here if so else Place.NOTHING

    def means(self, node: cst.CSTNode) -> bool:
        return names_a_device(node, self.said)


def place_of(
    node: cst.BaseExpression, above: Sequence[cst.CSTNode], names: Bindings, *, backend: bool, sure: bool
) -> Place:
    """What a string stands for.

    Args:
        node: the string.
        above: what it stands in, outermost first.
        names: the file's names.
        backend: whether a backend of ``torch.distributed`` is looked for, rather than a device.
        sure: whether its form alone says so, unless it is shown to people.
    """
    if _is_shown(above):
        return Place.NOTHING
    child: cst.CSTNode = node
    for depth in range(len(above) - 1, -1, -1):
        parent, search = above[depth], _Search(names, above[:depth], backend)
        found = _LEVELS.get(type(parent), _nowhere)(child, parent, search)
        if found is Place.NOTHING and sure and not _is_text(child, parent):
            return Place.CHECK if isinstance(parent, cst.Comparison) else search.here
        if found is not None:
            return found
        child = parent
    return Place.NOTHING


def names_a_device(node: cst.CSTNode, said: re.Pattern[str] = _DEVICE_NAME) -> bool:
    """Whether an expression's own words say that it is a device: ``x.device.type``, ``str(dev)``, ``config["device"]``."""
    if isinstance(node, cst.Name):
        return said.search(node.value) is not None
    if isinstance(node, cst.Attribute):
        if node.attr.value in ("type", "index"):
            return names_a_device(node.value, said)
        return said.search(node.attr.value) is not None
    if isinstance(node, cst.Call):
        if isinstance(node.func, cst.Name) and node.func.value in ("str", "repr") and node.args:
            return names_a_device(node.args[0].value, said)
        if isinstance(node.func, cst.Attribute) and node.func.attr.value in (
            "lower",
            "strip",
            "get",
            "split",
        ):
            return names_a_device(node.func.value, said) or any(_says(arg.value, said) for arg in node.args)
        return names_a_device(node.func, said)
    if isinstance(node, cst.Subscript):
        return any(
            isinstance(element.slice, cst.Index) and _says(element.slice.value, said)
            for element in node.slice
        ) or names_a_device(node.value, said)
    return False


def string_value(node: cst.CSTNode) -> str | None:
    """The text of a plain string literal."""
    if not isinstance(node, cst.SimpleString):
        return None
    value = node.evaluated_value
    return value if isinstance(value, str) else None


def _nowhere(child: cst.CSTNode, parent: cst.CSTNode, search: _Search) -> Place | None:
    return Place.NOTHING


def _further(child: cst.CSTNode, parent: cst.CSTNode, search: _Search) -> Place | None:
    return None


def _assigned(child: cst.CSTNode, parent: Any, search: _Search) -> Place | None:
    return search.if_so(any(search.means(target) for target in _targets(parent)))


def _default(child: cst.CSTNode, parent: cst.Param, search: _Search) -> Place | None:
    return search.if_so(child is parent.default and search.said.search(parent.name.value) is not None)


def _compared(child: cst.CSTNode, parent: cst.Comparison, search: _Search) -> Place | None:
    sides = [parent.left, *(target.comparator for target in parent.comparisons)]
    if not any(search.means(side) for side in sides):
        return Place.NOTHING
    return Place.BACKEND_CHECK if search.backend else Place.CHECK


def _matched(child: cst.CSTNode, parent: cst.MatchCase, search: _Search) -> Place | None:
    """``match device.type: case "cuda":``."""
    asked = search.above[-1] if search.above else None
    found = child is parent.pattern and isinstance(asked, cst.Match) and search.means(asked.subject)
    return Place.CHECK if found and not search.backend else Place.NOTHING


def _returned(child: cst.CSTNode, parent: cst.Return, search: _Search) -> Place | None:
    function = next((node for node in reversed(search.above) if isinstance(node, cst.FunctionDef)), None)
    return search.if_so(function is not None and search.said.search(function.name.value) is not None)


def _iterated(child: cst.CSTNode, parent: cst.For | cst.CompFor, search: _Search) -> Place | None:
    return search.if_so(search.means(parent.target))


def _chosen(child: cst.CSTNode, parent: cst.IfExp, search: _Search) -> Place | None:
    """``"cuda" if ... else "cpu"``: the alternative says what both are."""
    other = parent.orelse if child is parent.body else parent.body
    alternatives = ("gloo", "mpi") if search.backend else ("cpu", "mps", "xpu")
    return search.here if child is not parent.test and string_value(other) in alternatives else None


def _or_else(child: cst.CSTNode, parent: cst.BooleanOperation, search: _Search) -> Place | None:
    return search.here if search.means(parent.left if child is parent.right else parent.right) else None


def _in_dict(child: cst.CSTNode, parent: cst.DictElement, search: _Search) -> Place | None:
    if child is parent.key:
        return Place.NOTHING
    return search.here if _says(parent.key, search.said) else None


def _own_method(child: cst.CSTNode, parent: cst.Call, search: _Search) -> Place | None:
    """``"cuda:{}".format(rank)`` stands where its result does."""
    return None if child is parent.func else Place.NOTHING


def _argument(child: cst.CSTNode, arg: cst.Arg, search: _Search) -> Place | None:
    call = search.above[-1] if search.above else None
    if not isinstance(call, cst.Call):
        return Place.NOTHING
    keyword = "" if arg.keyword is None else arg.keyword.value
    fits = not keyword or search.said.search(keyword) is not None
    known = _of_known_function(call, keyword, search) if fits else None
    if known is not None:
        return known
    if keyword and fits:
        return Place.MAP_LOCATION if keyword == "map_location" else search.here
    last = _last_name(call.func)
    if last in _DECLARATIONS and (keyword in ("default", "choices") or last in ("Option", "Field", "field")):
        said = any(_says(other.value, search.said) for other in call.args if other is not arg)
        return search.here if said else None
    return Place.NOTHING if keyword else _positional(arg, call, last, search)


def _of_known_function(call: cst.Call, keyword: str, search: _Search) -> Place | None:
    """Functions of PyTorch's, whose arguments that may be devices are."""
    full, last = search.names.qualified(call.func) or "", _last_name(call.func)
    if search.backend:
        return Place.BACKEND if last in ("init_process_group", "new_group") else None
    if full.startswith("torch.") and not full.startswith(_NOT_ABOUT_DEVICES):
        return _of_torch(full, keyword, search.above)
    return Place.AUTOCAST if last == "autocast" else None


def _positional(arg: cst.Arg, call: cst.Call, last: str, search: _Search) -> Place:
    if last in _LOOKUPS:  # getattr(args, "device", "cuda"), config.get("device", "cuda")
        first = call.args[1 if last == "getattr" and len(call.args) > 2 else 0]
        return search.if_so(first is not arg and _says(first.value, search.said))
    if last in ("to", "register_kernel") and not search.backend:
        return search.here
    if last in ("startswith", "endswith", "find", "count", "index"):
        owner = call.func.value if isinstance(call.func, cst.Attribute) else call.func
        return Place.CHECK if search.means(owner) else Place.NOTHING
    if search.said.search(last) and last not in search.names.parameters:
        return search.here
    parameters = search.names.parameters.get(last, ())
    position = next(i for i, other in enumerate(call.args) if other is arg)
    return search.if_so(position < len(parameters) and search.said.search(parameters[position]) is not None)


def _of_torch(full: str, keyword: str, around: Sequence[cst.CSTNode]) -> Place:
    last = full.rpartition(".")[2]
    if "autocast" in last or last in ("GradScaler", "custom_fwd", "custom_bwd"):
        return Place.AUTOCAST
    if full == "torch.Generator":
        return Place.GENERATOR
    if (
        keyword == "map_location"
        or full == "torch.load"
        or (full == "torch.device" and is_map_location(around[-2:-1]))
    ):
        return Place.MAP_LOCATION
    return Place.DEVICE


def is_map_location(around: Sequence[cst.CSTNode]) -> bool:
    """Whether the last node is the argument ``map_location``."""
    arg = around[-1] if around else None
    return isinstance(arg, cst.Arg) and arg.keyword is not None and arg.keyword.value == "map_location"


def _is_text(child: cst.CSTNode, parent: cst.CSTNode) -> bool:
    """Whether a string that looks like a device is only text here, or a key."""
    if isinstance(parent, cst.DictElement):
        return child is parent.key
    return isinstance(
        parent,
        cst.Expr
        | cst.FormattedStringExpression
        | cst.Raise
        | cst.Index
        | cst.Assert
        | cst.Annotation
        | cst.MatchCase,
    )


def _is_shown(above: Sequence[cst.CSTNode]) -> bool:
    """Whether the nearest call around is one that tells people something."""
    for node in reversed(above):
        if isinstance(node, cst.Call):
            return _last_name(node.func) in _TALK or _last_name(node.func).endswith(
                ("Error", "Warning", "Exception")
            )
        if isinstance(node, cst.BaseSmallStatement | cst.BaseCompoundStatement):
            return False
    return False


def _says(node: cst.CSTNode | None, said: re.Pattern[str]) -> bool:
    text = None if node is None else string_value(node)
    return text is not None and said.search(text) is not None


def _targets(node: cst.Assign | cst.AnnAssign | cst.AugAssign | cst.NamedExpr) -> list[cst.BaseExpression]:
    if not isinstance(node, cst.Assign):
        return [node.target]
    flat: list[cst.BaseExpression] = []
    for target in node.targets:
        if isinstance(target.target, cst.Tuple | cst.List):
            flat += [element.value for element in target.target.elements]
        else:
            flat.append(target.target)
    return flat


def _last_name(node: cst.CSTNode) -> str:
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return (dotted_name(node) or "").rpartition(".")[2]


_LEVELS: dict[type[cst.CSTNode], Callable[[cst.CSTNode, Any, _Search], Place | None]] = {
    cst.Arg: _argument,
    cst.Assign: _assigned,
    cst.AnnAssign: _assigned,
    cst.AugAssign: _assigned,
    cst.NamedExpr: _assigned,
    cst.Param: _default,
    cst.Comparison: _compared,
    cst.Return: _returned,
    cst.MatchCase: _matched,
    cst.For: _iterated,
    cst.CompFor: _iterated,
    cst.IfExp: _chosen,
    cst.BooleanOperation: _or_else,
    cst.DictElement: _in_dict,
    cst.Call: _own_method,
    **dict.fromkeys(
        (
            cst.ComparisonTarget, cst.Element, cst.List, cst.Tuple, cst.Set, cst.Dict, cst.BinaryOperation, cst.Attribute,
            cst.Lambda, cst.MatchValue, cst.MatchAs, cst.MatchOr, cst.MatchOrElement,
        ),
        _further,
    ),
}  # fmt: skip
"""What each kind of node says: a place, ``NOTHING`` to end the search, or ``None`` to look further up."""
