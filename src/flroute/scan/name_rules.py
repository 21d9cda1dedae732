"""Rules about names: ``torch.cuda.*``, ``x.is_cuda``, ``ProfilerActivity.CUDA``, flags, imports, autograd functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from flroute.scan.bindings import dotted_name
from flroute.scan.cuda_names import (
    ACCELERATOR,
    AMP,
    ERRORS,
    HOST_TYPES,
    LIBRARIES,
    PROFILER_COLUMNS,
    SEEDS,
    library_of,
    redirected,
    refusal,
)
from flroute.scan.findings import Kind, Need
from flroute.scan.look import Hit, Look, in_a_test, parenthesized, source_of
from flroute.scan.places import string_value

_FLAGS = ("torch.backends.cuda", "torch.backends.cudnn")
_HANDLED = {"ImportError", "ModuleNotFoundError", "Exception", "OSError"}


def reference(node: cst.Attribute | cst.Name, updated: cst.CSTNode, look: Look) -> Hit | None:
    """A use of ``torch.cuda.*`` or of one of PyTorch's flags for CUDA's libraries, however it was imported."""
    if not _is_whole(node, look):
        return None
    name = look.qualified(node)
    if name.startswith(_FLAGS):
        return Hit(Kind.BACKEND_FLAGS, Need.NOTHING, "without effect on other devices")
    if name == "torch.autograd.profiler.emit_nvtx":
        return Hit(Kind.CUDA_ONLY, Need.HAND, "it is for NVIDIA's profilers; use torch.profiler")
    if name.startswith("torch._C._cuda"):
        return Hit(Kind.CUDA_ONLY, Need.HAND, "PyTorch's own, and nobody else's; leave it out", runs=False)
    if name == "torch.version.cuda":
        return Hit(Kind.CUDA_API, Need.NOTHING, "None where PyTorch was built without CUDA")
    if not name.startswith("torch.cuda."):
        return Hit(Kind.CUDA_API, Need.HAND, "name what is used of it") if name == "torch.cuda" else None
    called = isinstance(look.parent, cst.Call) and look.parent.func is node
    if called and (name in HOST_TYPES or name == "torch.cuda.nvtx.range"):
        return None
    if name in AMP or name in SEEDS:
        return _without_arguments(node, name, look)
    return _of_cuda(name.removeprefix("torch.cuda."), look)


def by_name(node: cst.Call, updated: cst.Call, look: Look) -> Hit | None:
    """``getattr(torch, "cuda")``, ``import_module("torch.cuda.amp")``: a name that is given as text."""
    asked = dotted_name(node.func)
    if asked == "getattr" and len(node.args) > 1:
        return _attribute_by_name(node, look)
    if asked != "__import__" and look.qualified(node.func) != "importlib.import_module":
        return None
    module = string_value(node.args[0].value) if node.args else None
    hit = None if module is None else _import_of(module, module, None, look)
    return hit if hit is None or hit.kind is Kind.LIBRARY else replace(hit, advice="name what is used of it")


def _attribute_by_name(node: cst.Call, look: Look) -> Hit | None:
    owner, name = look.qualified(node.args[0].value), string_value(node.args[1].value)
    if name == "cuda" and owner == "torch":
        return Hit(Kind.CUDA_API, instead=look.code("{torch}.get_device_module()"))
    if name == "cuda" and isinstance(look.parent, cst.Call) and look.parent.func is node:
        return Hit(Kind.CUDA_METHOD, Need.HAND, f"x.to({look.device})")
    if name == "is_cuda":
        return Hit(Kind.DEVICE_CHECK, Need.HAND, 'x.device.type != "cpu"')
    if name in ("cuda", "cudnn") and owner == "torch.backends":
        return Hit(Kind.BACKEND_FLAGS, Need.NOTHING, "without effect on other devices")
    return None


def is_cuda(node: cst.Attribute, updated: cst.Attribute, look: Look) -> Hit | None:
    """``x.is_cuda``."""
    if (
        node.attr.value != "is_cuda"
        or isinstance(look.parent, cst.AssignTarget)
        or look.qualified(node).startswith("torch.")
    ):
        return None
    new = look.code('{owner}.device.type != "cpu"', owner=updated.value)
    return Hit(
        Kind.DEVICE_CHECK,
        instead=new if in_a_test(node, look.parent) else parenthesized(new),
        at=node.attr,
    )


def not_on_cuda(node: cst.UnaryOperation, updated: cst.UnaryOperation, look: Look) -> cst.CSTNode | None:
    """``not x.is_cuda``, whose question was found already."""
    asked = node.expression
    if (
        not isinstance(node.operator, cst.Not)
        or not isinstance(asked, cst.Attribute)
        or asked.attr.value != "is_cuda"
    ):
        return None
    if updated.expression is asked:
        return None
    new = look.code('{owner}.device.type == "cpu"', owner=asked.value)
    return new if in_a_test(node, look.parent) else parenthesized(new)


def profiler_column(node: cst.Attribute, updated: cst.Attribute, look: Look) -> Hit | None:
    """``event.cuda_time_total``."""
    if node.attr.value not in PROFILER_COLUMNS:
        return None
    new = cst.Name(node.attr.value.replace("cuda", "device"))
    return Hit(Kind.PROFILER, instead=updated.with_changes(attr=new), at=node.attr)


def profiler_activity(node: cst.Attribute, updated: cst.Attribute, look: Look) -> Hit | None:
    """``ProfilerActivity.CUDA``: in a list beside ``CPU`` the list is rewritten as a whole."""
    if not _is_activity(node, "CUDA"):
        return None
    whole = look.above[-2] if len(look.above) > 1 else None
    if isinstance(whole, cst.List | cst.Set | cst.Tuple) and _is_cpu_and_cuda(whole):
        return Hit(Kind.PROFILER, advice="torch.profiler.supported_activities()")
    return Hit(Kind.PROFILER, Need.HAND, "torch.profiler.supported_activities() has that of this device")


def profiler_activities(
    node: cst.List | cst.Set | cst.Tuple, updated: cst.CSTNode, look: Look
) -> cst.CSTNode | None:
    """``[ProfilerActivity.CPU, ProfilerActivity.CUDA]``, whose parts were found already."""
    return look.code("{torch}.profiler.supported_activities()") if _is_cpu_and_cuda(node) else None


def imported(node: cst.Import, updated: cst.Import, look: Look) -> Hit | None:
    """``import torch.cuda.amp as amp``, ``import flash_attn``."""
    for alias in node.names:
        module = dotted_name(alias.name) or ""
        hit = _import_of(module, module, alias, look)
        if hit is not None:
            return hit
    return None


def imported_from(node: cst.ImportFrom, updated: cst.ImportFrom, look: Look) -> Hit | None:
    """``from torch.cuda.amp import autocast``, ``from xformers.ops import ...``."""
    module = "" if node.module is None or node.relative else dotted_name(node.module) or ""
    if isinstance(node.names, cst.ImportStar):
        return _import_of(module, f"{module}.*", None, look) if module else None
    hits = [_import_of(f"{module}.{source_of(alias.name)}", module, alias, look) for alias in node.names]
    found = [hit for hit in hits if hit is not None]
    return max(found, key=lambda hit: list(Need).index(hit.need), default=None)


def autograd_function(
    node: cst.ClassDef, updated: cst.ClassDef, look: Look, inside: Sequence[Hit]
) -> Hit | None:
    """A ``torch.autograd.Function`` with device-bound lines: what it needs is what they need."""
    if not any(look.qualified(base.value).startswith("torch.autograd") for base in node.bases):
        return None
    needs = [hit.need for hit in inside if hit.need is not Need.NOTHING]
    if not needs:
        return None
    worst = max(needs, key=list(Need).index)
    runs = all(hit.runs for hit in inside)
    return Hit(Kind.AUTOGRAD_FUNCTION, worst, "its device-bound lines are listed", at=node.name, runs=runs)


def decorator(node: cst.Decorator, updated: cst.Decorator, look: Look) -> cst.CSTNode | None:
    """``@custom_fwd`` without parentheses, which the rule for names has found."""
    name = look.qualified(node.decorator)
    if name not in AMP or "custom_" not in name:
        return None
    return updated.with_changes(decorator=look.code(AMP[name] + "(device_type={device}.type)"))


def _without_arguments(node: cst.CSTNode, name: str, look: Look) -> Hit | None:
    """A function that is called is the business of the rules for calls."""
    parent = look.parent
    if isinstance(parent, cst.Call) and parent.func is node:
        return None
    kind = Kind.AMP if name in AMP else Kind.SEED
    if isinstance(parent, cst.Decorator) and "custom_" in name:
        return Hit(kind, advice=f"@{AMP[name].format(torch=look.torch)}(device_type={look.device}.type)")
    return Hit(kind, Need.HAND, "call it where it is used, so that it can be told the device")


def _of_cuda(name: str, look: Look) -> Hit:
    if name in ERRORS:
        return Hit(Kind.CUDA_API, instead=look.code(f"{{torch}}.{name}"))
    refused = refusal(name)
    if refused is not None:
        kind, need, advice = refused
        return Hit(kind, need, advice, runs=f"torch.cuda.{name}" in redirected())
    if any(isinstance(node, cst.Annotation) for node in look.above):
        if name not in ("Stream", "Event"):
            return Hit(Kind.CUDA_API, Need.HAND, "annotate with what every device has")
        return Hit(Kind.CUDA_API, instead=look.code(f"{{torch}}.{name}"))
    call = look.parent
    by_name = isinstance(call, cst.Call) and any(arg.keyword is not None for arg in call.args)
    plain = name.removeprefix("memory.").removeprefix("streams.")
    if plain in ACCELERATOR and not by_name:
        return Hit(Kind.CUDA_API, instead=look.code(f"{{torch}}.accelerator.{ACCELERATOR[plain]}"))
    return Hit(Kind.CUDA_API, instead=look.code(f"{{torch}}.get_device_module().{name}"))


def _is_whole(node: cst.CSTNode, look: Look) -> bool:
    """Whether a name is neither a part of a longer one, nor a keyword, a parameter or something else that only looks like a use."""
    parent = look.parent
    if isinstance(parent, cst.Attribute):
        return False
    if isinstance(node, cst.Attribute):
        return not any(isinstance(above, cst.ImportFrom | cst.ImportAlias) for above in look.above[-2:])
    if isinstance(parent, cst.Arg):
        return parent.value is node
    return not isinstance(
        parent,
        cst.Param | cst.AssignTarget | cst.ImportAlias | cst.AsName | cst.ImportFrom | cst.FunctionDef | cst.ClassDef
        | cst.NameItem | cst.Global,
    )  # fmt: skip


def _is_activity(node: cst.CSTNode, name: str) -> bool:
    return (dotted_name(node) or "").endswith(f"ProfilerActivity.{name}")


def _is_cpu_and_cuda(node: cst.List | cst.Set | cst.Tuple) -> bool:
    values = [element.value for element in node.elements]
    return (
        len(values) == 2
        and any(_is_activity(v, "CPU") for v in values)
        and any(_is_activity(v, "CUDA") for v in values)
    )


def _import_of(full: str, module: str, alias: cst.ImportAlias | None, look: Look) -> Hit | None:
    if full.startswith("torch.cuda.amp") or module.startswith("torch.cuda.amp"):
        return Hit(Kind.AMP, _need_of(alias, look), "is not needed any more")
    if full == "torch.cuda" or full.startswith("torch.cuda."):
        name = full.removeprefix("torch.cuda").removeprefix(".")
        refused = refusal(name) if name and alias is not None else None
        if refused is not None:
            return Hit(*refused, runs=f"torch.cuda.{name}" in redirected())
        return Hit(Kind.CUDA_API, _need_of(alias, look), "is not needed any more")
    if full.startswith(_FLAGS):
        return Hit(Kind.BACKEND_FLAGS, Need.NOTHING, "without effect on other devices")
    library = library_of(full) or library_of(module)
    if library is None:
        return None
    if _absence_is_handled(look):
        return Hit(Kind.LIBRARY, Need.NOTHING, "its absence is handled")
    return Hit(Kind.LIBRARY, Need.BLOCKED, LIBRARIES[library], runs=False)


def _need_of(alias: cst.ImportAlias | None, look: Look) -> Need:
    """An import can go when every use of it is rewritten."""
    if alias is None:
        return Need.HAND
    local = alias.evaluated_alias or alias.evaluated_name.partition(".")[0]
    if local == "torch":  # `import torch.cuda`
        return Need.FIX
    uses = look.uses.get(local, [])
    return (
        Need.FIX
        if uses and all(need is Need.FIX for need in uses) and local not in look.names.ambiguous
        else Need.HAND
    )


def _absence_is_handled(look: Look) -> bool:
    """Whether an import stands in a `try` that catches its failure, or where something has asked for the package first."""
    for above, below in zip(look.above, [*look.above[1:], None], strict=True):
        if isinstance(above, cst.Try) and below is above.body:
            caught = " ".join(
                source_of(handler.type) if handler.type else "Exception" for handler in above.handlers
            )
            if any(name in caught for name in _HANDLED):
                return True
        if isinstance(above, cst.If) and any(
            word in source_of(above.test) for word in ("available", "TYPE_CHECKING")
        ):
            return True
    return False
