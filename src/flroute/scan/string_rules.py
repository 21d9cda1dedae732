"""Rules about text: device strings, checks of a device, backends, columns of a profile, variables of the environment."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import libcst as cst

from flroute.scan.cuda_names import PROFILER_COLUMNS, is_environment
from flroute.scan.findings import Kind, Need
from flroute.scan.look import Hit, Look, in_a_test, parenthesized, source_of
from flroute.scan.places import Place, names_a_device, place_of, string_value

_CUDA = re.compile(r"cuda(:.*)?", re.DOTALL)
_SURE = re.compile(r"cuda:(\d+|%d|%s|\{\w*\})?")
_OTHERS = re.compile(r"""["'](mps|xpu|npu|hpu|mlu|musa|xla|mtia)\b""")
_TYPE = re.compile(r"torch\.cuda\.(sparse\.)?\w+Tensor")

_KINDS = {
    Place.DEVICE: Kind.DEVICE_STRING,
    Place.CHECK: Kind.DEVICE_CHECK,
    Place.MAP_LOCATION: Kind.MAP_LOCATION,
    Place.AUTOCAST: Kind.AMP,
    Place.GENERATOR: Kind.GENERATOR,
    Place.BACKEND: Kind.COLLECTIVES,
    Place.BACKEND_CHECK: Kind.COLLECTIVES,
}
_BACKEND = "{torch}.distributed.get_default_backend_for_device({device})"
_NO_GENERATOR = "PyTorch makes generators of its own devices only: torch.Generator(), and draw on the host"


def simple_string(node: cst.SimpleString, updated: cst.SimpleString, look: Look) -> Hit | None:
    """A literal: ``"cuda:1"``, ``"nccl"``, ``"cuda_time_total"``, ``"CUDA_VISIBLE_DEVICES"``."""
    text = string_value(node)
    if text is None or isinstance(look.parent, cst.ConcatenatedString):
        return None
    if _CUDA.fullmatch(text):
        return _device_string(node, text, look)
    if text == "nccl":
        return _backend(node, look)
    if _TYPE.fullmatch(text):
        return Hit(Kind.TENSOR_TYPE, Need.HAND, "say dtype= and device=DEVICE")
    if text == "CUDA" and _is_dispatch_key(look):
        return Hit(
            Kind.DEVICE_STRING, Need.HAND, "register_kernel(DEVICE.type) of torch.library takes any device"
        )
    if text in PROFILER_COLUMNS and _is_column(text, look):
        return Hit(Kind.PROFILER, instead=cst.SimpleString(node.value.replace("cuda", "device")))
    if is_environment(text) and _in_environment(look):
        return Hit(
            Kind.ENVIRONMENT, Need.NOTHING, "CUDA's libraries alone read it; choose a device by its index"
        )
    return None


def formatted_string(node: cst.FormattedString, updated: cst.FormattedString, look: Look) -> Hit | None:
    """``f"cuda:{rank}"``."""
    first = node.parts[0] if node.parts else None
    if not isinstance(first, cst.FormattedStringText) or first.value != "cuda:" or len(node.parts) != 2:
        return None
    place = place_of(node, look.above, look.names, backend=False, sure=True)
    if place is Place.NOTHING:
        return None
    if place is Place.GENERATOR:
        return Hit(Kind.GENERATOR, Need.HAND, _NO_GENERATOR)
    kind = cst.FormattedStringExpression(look.code("{device}.type"))
    parts = (kind, first.with_changes(value=":"), *updated.parts[1:])
    return Hit(_KINDS[place], instead=updated.with_changes(parts=parts))


def comparison(node: cst.Comparison, updated: cst.Comparison, look: Look) -> Hit | None:
    """``device.type == "cuda"`` asks whether something is on the host, turned round."""
    if len(node.comparisons) != 1:
        return None
    target = node.comparisons[0]
    for text, other in ((target.comparator, node.left), (node.left, target.comparator)):
        if string_value(text) != "cuda" or not names_a_device(other):
            continue
        if _other_devices_around(look):
            return None
        turned = _opposite(target.operator)
        if turned is None or (isinstance(target.operator, cst.In | cst.NotIn) and text is target.comparator):
            return None
        host = (
            cst.SimpleString(text.value.replace("cuda", "cpu"))
            if isinstance(text, cst.SimpleString)
            else text
        )
        new_target = updated.comparisons[0].with_changes(operator=turned)
        if text is target.comparator:
            new_target = new_target.with_changes(comparator=host)
        left = host if text is node.left else updated.left
        return Hit(
            Kind.DEVICE_CHECK, instead=updated.with_changes(left=left, comparisons=[new_target]), at=text
        )
    return None


def _other_devices_around(look: Look) -> bool:
    """Whether a chain of `elif` goes on to ask about other accelerators, who would never be asked if all of them came first."""
    chain = [node for node in look.above if isinstance(node, cst.If)]
    tests: list[str] = []
    for node in chain:
        link: cst.CSTNode | None = node
        while isinstance(link, cst.If):
            tests.append(source_of(link.test))
            link = link.orelse
    return _OTHERS.search(" ".join(tests)) is not None


def starts_with(node: cst.Call, updated: cst.Call, look: Look) -> Hit | None:
    """``device.startswith("cuda")``."""
    func = node.func
    if not isinstance(func, cst.Attribute) or func.attr.value != "startswith" or len(node.args) != 1:
        return None
    if string_value(node.args[0].value) != "cuda" or not names_a_device(func.value):
        return None
    if _other_devices_around(look):
        return None
    host = look.code('{owner}.startswith("cpu")', owner=func.value)
    new: cst.BaseExpression = cst.UnaryOperation(cst.Not(), host)
    if not in_a_test(node, look.parent):
        new = parenthesized(new)
    return Hit(Kind.DEVICE_CHECK, instead=new, at=node.args[0].value)


def conditional(node: cst.IfExp, updated: cst.IfExp, look: Look) -> cst.CSTNode | None:
    """``"cuda" if torch.cuda.is_available() else "cpu"`` is what ``DEVICE.type`` says; its parts were found already."""
    available = (
        isinstance(node.test, cst.Call) and look.qualified(node.test.func) == "torch.cuda.is_available"
    )
    if not available or updated.body is node.body:  # a rule has to have found that a device is meant
        return None
    pair = (string_value(node.body), string_value(node.orelse))
    if pair == ("cuda", "cpu"):
        return look.code("{device}.type")
    if pair == ("nccl", "gloo"):
        return look.code(_BACKEND)
    return None


_OPPOSITES: dict[type[cst.BaseCompOp], Callable[[], cst.BaseCompOp]] = {
    cst.Equal: cst.NotEqual,
    cst.NotEqual: cst.Equal,
    cst.In: cst.NotIn,
    cst.NotIn: cst.In,
}


def _opposite(operator: Any) -> cst.BaseCompOp | None:
    made = _OPPOSITES.get(type(operator))
    if made is None:
        return None
    return made().with_changes(
        whitespace_before=operator.whitespace_before, whitespace_after=operator.whitespace_after
    )


def _device_string(node: cst.SimpleString, text: str, look: Look) -> Hit | None:
    sure = _SURE.fullmatch(text) is not None
    place = place_of(node, look.above, look.names, backend=False, sure=sure)
    if place is Place.NOTHING:
        if (
            "nccl" in text
            and place_of(node, look.above, look.names, backend=True, sure=False) is not Place.NOTHING
        ):
            return Hit(
                Kind.COLLECTIVES, Need.HAND, "leave the backend out: PyTorch knows that of each device"
            )
        return None
    if place is Place.GENERATOR:
        return Hit(Kind.GENERATOR, Need.HAND, _NO_GENERATOR)
    if _is_part_of_text(look):
        return Hit(_KINDS[place], Need.HAND, "a part of a longer text: say what it is on another device")
    if place is Place.DEVICE and _is_one_of_many(look):
        return Hit(_KINDS[place], Need.HAND, "one of the devices that are listed: add DEVICE.type")
    if place is Place.CHECK and (text == "cuda" or isinstance(look.parent, cst.MatchValue)):
        if _rewritten_above(look):
            return None
        return Hit(Kind.DEVICE_CHECK, Need.HAND, 'ask about "cpu" instead, or compare with DEVICE.type')
    if (
        place is Place.MAP_LOCATION and text == "cuda:0" and isinstance(look.parent, cst.Arg)
    ):  # torch.load knows no "cpu:0"
        return Hit(Kind.MAP_LOCATION, instead=look.code("{device}"))
    return Hit(_KINDS[place], instead=_new_string(node, text, look))


def _new_string(node: cst.SimpleString, text: str, look: Look) -> cst.BaseExpression:
    if text == "cuda":
        return look.code("{device}.type")
    rest = text.removeprefix("cuda").replace("{", "{{").replace("}", "}}")
    return cst.FormattedString(
        start="f" + node.quote,
        end=node.quote,
        parts=[cst.FormattedStringExpression(look.code("{device}.type")), cst.FormattedStringText(rest)],
    )


def _rewritten_above(look: Look) -> bool:
    """Whether the rule for comparisons, or for `startswith`, speaks for this string."""
    parent = look.parent
    if isinstance(parent, cst.Arg):
        call = look.above[-2]
        return isinstance(call, cst.Call) and starts_with(call, call, look) is not None
    around = parent if isinstance(parent, cst.Comparison) else look.above[-2]
    return isinstance(around, cst.Comparison) and comparison(around, around, look) is not None


def _backend(node: cst.SimpleString, look: Look) -> Hit | None:
    place = place_of(node, look.above, look.names, backend=True, sure=False)
    return None if place is Place.NOTHING else Hit(_KINDS[place], instead=look.code(_BACKEND))


def _is_column(text: str, look: Look) -> bool:
    """``sort_by="cuda_time_total"``, ``row["cuda_time"]``; the longer ones mean nothing else in a list or a variable, either."""
    if isinstance(look.parent, cst.Arg | cst.Index):
        return True
    listed = isinstance(look.parent, cst.Element | cst.Assign | cst.Param)
    return listed and text.endswith(("_total", "_usage"))


def _is_dispatch_key(look: Look) -> bool:
    """``library.impl("op", function, "CUDA")``."""
    call = look.above[-2] if isinstance(look.parent, cst.Arg) and len(look.above) > 1 else None
    if not isinstance(call, cst.Call):
        return False
    is_method = isinstance(call.func, cst.Attribute) and call.func.attr.value == "impl"
    return is_method or look.qualified(call.func) in ("torch.library.impl", "torch.library.Library")


def _is_one_of_many(look: Look) -> bool:
    """``("cuda", "xpu", "npu")``: whoever lists devices means each of them."""
    if not isinstance(look.parent, cst.Element) or len(look.above) < 2:
        return False
    return _OTHERS.search(source_of(look.above[-2])) is not None


def _is_part_of_text(look: Look) -> bool:
    """``f"{'cuda' if on_cuda else 'cpu'}_time"``: a longer word, and no device."""
    whole = next((node for node in reversed(look.above) if isinstance(node, cst.FormattedString)), None)
    if whole is None:
        return False
    texts = [part.value for part in whole.parts if isinstance(part, cst.FormattedStringText)]
    return any(text != ":" for text in texts)


def _in_environment(look: Look) -> bool:
    if isinstance(look.parent, cst.Index):
        owner = next((node for node in reversed(look.above) if isinstance(node, cst.Subscript)), None)
        return owner is not None and "environ" in (look.names.qualified(owner.value) or "environ")
    if isinstance(look.parent, cst.Arg):
        call = look.above[-2]
        return isinstance(call, cst.Call) and look.qualified(call.func).startswith(
            ("os.environ", "os.getenv", "os.putenv")
        )
    return False
