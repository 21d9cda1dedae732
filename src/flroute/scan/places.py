"""Where a string stands, and so whether it names a device: ``device="cuda"`` does, ``print("cuda")`` does not.

``"cuda"`` is also a word, and counts where something around it says that a device is meant: a parameter, a target, a key, the
other side of a comparison. ``"cuda:1"`` and ``f"cuda:{rank}"`` are nothing else, and count wherever they are not shown to people.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto

import libcst as cst

from flroute.scan.bindings import Bindings, dotted_name

_DEVICE_NAME = re.compile(r"device|accelerator|map_location|(^|[_-])dev([_-]|\d|$)", re.IGNORECASE)
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
    said = _BACKEND_NAME if backend else _DEVICE_NAME
    here = Place.BACKEND if backend else Place.DEVICE
    child: cst.CSTNode = node
    if _is_shown(above):
        return Place.NOTHING
    for depth in range(len(above) - 1, -1, -1):
        parent, around = above[depth], above[:depth]
        found = _one_level(child, parent, around, names, said, here)
        if found is Place.NOTHING and sure and not _is_text(child, parent):
            return Place.CHECK if isinstance(parent, cst.Comparison) else here
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


def _one_level(
    child: cst.CSTNode,
    parent: cst.CSTNode,
    around: Sequence[cst.CSTNode],
    names: Bindings,
    said: re.Pattern[str],
    here: Place,
) -> Place | None:
    """What one level says: a place, ``NOTHING`` to end the search, or ``None`` to look further up."""
    backend = here is Place.BACKEND
    if isinstance(parent, cst.Arg):
        return _argument(parent, around, names, said, here)
    if isinstance(parent, cst.Assign | cst.AnnAssign | cst.AugAssign | cst.NamedExpr):
        return here if any(names_a_device(target, said) for target in _targets(parent)) else Place.NOTHING
    if isinstance(parent, cst.Param):
        return here if child is parent.default and said.search(parent.name.value) else Place.NOTHING
    if isinstance(parent, cst.ComparisonTarget):
        return None
    if isinstance(parent, cst.Comparison):
        sides = [parent.left, *(target.comparator for target in parent.comparisons)]
        asked = any(names_a_device(side, said) for side in sides)
        return (Place.BACKEND_CHECK if backend else Place.CHECK) if asked else Place.NOTHING
    if isinstance(parent, cst.Return):
        function = next((n for n in reversed(around) if isinstance(n, cst.FunctionDef)), None)
        return here if function is not None and said.search(function.name.value) else Place.NOTHING
    if isinstance(parent, cst.For | cst.CompFor):
        return here if names_a_device(parent.target, said) else Place.NOTHING
    if isinstance(parent, cst.IfExp):
        other = parent.orelse if child is parent.body else parent.body
        alternative = ("gloo", "mpi") if backend else ("cpu", "mps", "xpu")
        return here if child is not parent.test and string_value(other) in alternative else None
    if isinstance(parent, cst.BooleanOperation):
        other = parent.left if child is parent.right else parent.right
        return here if names_a_device(other, said) else None
    if isinstance(parent, cst.DictElement):
        if child is parent.key:
            return Place.NOTHING
        return here if _says(parent.key, said) else None
    if isinstance(
        parent,
        cst.Element | cst.List | cst.Tuple | cst.Set | cst.Dict | cst.BinaryOperation | cst.Attribute,
    ):
        return None
    if isinstance(parent, cst.Call):  # of a string's own method: "cuda:{}".format(rank)
        return None if child is parent.func else Place.NOTHING
    if isinstance(parent, cst.Lambda):
        return None
    return Place.NOTHING


def _argument(
    arg: cst.Arg, around: Sequence[cst.CSTNode], names: Bindings, said: re.Pattern[str], here: Place
) -> Place | None:
    call = around[-1] if around else None
    if not isinstance(call, cst.Call):
        return Place.NOTHING
    full, last = names.qualified(call.func) or "", _last_name(call.func)
    keyword = None if arg.keyword is None else arg.keyword.value
    if here is Place.BACKEND:
        if last in ("init_process_group", "new_group") and (keyword is None or said.search(keyword)):
            return Place.BACKEND
    elif full.startswith("torch.") and not full.startswith(_NOT_ABOUT_DEVICES):
        if keyword is None or said.search(keyword):
            return _of_torch(full, keyword, around)
    elif last == "autocast":
        return Place.AUTOCAST
    if keyword is not None and said.search(keyword):
        return Place.MAP_LOCATION if keyword == "map_location" else here
    if last in _DECLARATIONS and (keyword in ("default", "choices") or last in ("Option", "Field", "field")):
        return here if any(_says(other.value, said) for other in call.args if other is not arg) else None
    if keyword is not None:
        return Place.NOTHING
    if last in _LOOKUPS:
        first = call.args[1 if last == "getattr" and len(call.args) > 2 else 0]
        return here if first is not arg and _says(first.value, said) else Place.NOTHING
    if last in ("to", "type_as") and here is Place.DEVICE:
        return here
    if last in ("startswith", "endswith", "find", "count", "index"):
        owner = call.func.value if isinstance(call.func, cst.Attribute) else call.func
        return Place.CHECK if names_a_device(owner, said) else Place.NOTHING
    if said.search(last) and last not in names.parameters:
        return here
    parameters = names.parameters.get(last, ())
    position = next(i for i, other in enumerate(call.args) if other is arg)
    named = position < len(parameters) and said.search(parameters[position])
    return here if named else Place.NOTHING


def _of_torch(full: str, keyword: str | None, around: Sequence[cst.CSTNode]) -> Place:
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
        | cst.MatchValue,
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
