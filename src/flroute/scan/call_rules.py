"""Rules about calls: moves between devices, mixed precision, seeds, extensions, ops without a kernel."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

import libcst as cst

from flroute.scan.cuda_names import AMP, AUTOCAST_PARAMETERS, CHOOSING, EXTENSIONS, HOST_TYPES, SEEDS
from flroute.scan.findings import Kind, Need
from flroute.scan.look import Hit, Look, keyword, source_of
from flroute.scan.places import is_map_location, names_a_device, string_value

_CUDA_TEXT = re.compile(r"""["']cuda""")

_OPS = {
    "torch": "",
    "torch.nn.functional": "",
    "torch.linalg": "linalg_",
    "torch.fft": "fft_",
    "torch.special": "special_",
}
"""Where PyTorch's functions are, and what their op is called before the function's own name."""


def moved_to_cuda(node: cst.Call, updated: cst.Call, look: Look) -> Hit | None:
    """``x.cuda()``, ``model.cuda(rank)``."""
    if not _is_method(node, "cuda", look) or (
        isinstance(look.parent, cst.Lambda) and is_map_location(look.above[:-1])
    ):
        return None
    func = cst.ensure_type(updated.func, cst.Attribute)
    args = list(updated.args)
    if len(args) == 2 and all(arg.keyword is None and not arg.star for arg in args):
        args[1] = args[1].with_changes(keyword=cst.Name("non_blocking"), equal=_tight())
    device_given = any(arg.keyword is None or arg.keyword.value == "device" for arg in args)
    if not device_given:
        args.insert(0, _first(look.code("{device}"), args))
    new = updated.with_changes(func=func.with_changes(attr=cst.Name("to")), args=args)
    return Hit(Kind.CUDA_METHOD, instead=new, at=cst.ensure_type(node.func, cst.Attribute).attr)


def copied_to_host(node: cst.Call, updated: cst.Call, look: Look) -> Hit | None:
    """``x.cpu()``."""
    if not _is_method(node, "cpu", look) or node.args:
        return None
    return Hit(
        Kind.HOST_COPY,
        Need.NOTHING,
        "copies to the host from any device",
        at=cst.ensure_type(node.func, cst.Attribute).attr,
    )


def moved(node: cst.Call, updated: cst.Call, look: Look) -> Hit | None:
    """``x.to(device)``; where ``device`` is a literal, the rule for strings speaks."""
    if not _is_method(node, "to", look) or not node.args:
        return None
    target = keyword(node.args, "device") or node.args[0]
    if target.keyword is None:
        named = target.value.value if isinstance(target.value, cst.Name) else ""
        neutral = (
            names_a_device(target.value)
            or string_value(target.value) == "cpu"
            or named in look.names.devices
            or named in ("rank", "local_rank", "gpu")
        )
    else:
        neutral = target.keyword.value == "device"
    if not neutral or _CUDA_TEXT.search(source_of(target.value)):
        return None
    return Hit(
        Kind.MOVE, Need.NOTHING, "names no kind of device", at=cst.ensure_type(node.func, cst.Attribute).attr
    )


def map_location(node: cst.Arg, updated: cst.Arg, look: Look) -> Hit | None:
    """``map_location=...``; a literal is the business of the rules for strings."""
    if not is_map_location([node]):
        return None
    if isinstance(node.value, cst.Lambda):
        moved = node.value.body
        if (
            isinstance(moved, cst.Call)
            and isinstance(moved.func, cst.Attribute)
            and moved.func.attr.value == "cuda"
        ):
            return Hit(
                Kind.MAP_LOCATION,
                instead=updated.with_changes(value=_place_of_storage(moved, look)),
                at=node.keyword,
            )
    if isinstance(node.value, cst.Dict):
        places = [element for element in node.value.elements if isinstance(element, cst.DictElement)]
        named = [element for element in places if (string_value(element.key) or "").startswith("cuda")]
        if named and not any(f"{look.device}.type" in source_of(element.key) for element in places):
            return _with_keys_of_the_device(updated, named, look)
    if _CUDA_TEXT.search(source_of(node.value)) and not isinstance(node.value, cst.Dict):
        return None
    return Hit(Kind.MAP_LOCATION, Need.NOTHING, "names no kind of device", at=node.keyword)


def _place_of_storage(moved: cst.Call, look: Look) -> cst.BaseExpression:
    """What ``lambda storage, location: storage.cuda(index)`` says."""
    if not moved.args:
        return look.code("{device}")
    return look.code("{torch}.device({device}.type, {index})", index=moved.args[0].value)


def _with_keys_of_the_device(updated: cst.Arg, named: Sequence[cst.DictElement], look: Look) -> Hit:
    """The device's own places beside those of cuda, which files written on cuda go on naming."""
    old = cst.ensure_type(updated.value, cst.Dict)
    keys = {string_value(element.key) for element in named}
    added = []
    for element in old.elements:
        if isinstance(element, cst.DictElement) and string_value(element.key) in keys:
            key = cst.ensure_type(element.key, cst.SimpleString)
            rest = (string_value(key) or "").removeprefix("cuda")
            text = f"f{key.quote}{{{look.device}.type}}{rest}{key.quote}"
            added.append(cst.DictElement(cst.parse_expression(text), element.value))
    *others, last = old.elements
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    elements = [*others, last.with_changes(comma=comma), *added]
    return Hit(
        Kind.MAP_LOCATION,
        instead=updated.with_changes(value=old.with_changes(elements=elements)),
        at=named[0].key,
    )


def tensor_of_a_type(node: cst.Call, updated: cst.Call, look: Look) -> Hit | None:
    """``torch.cuda.FloatTensor([1.0])`` makes on the host what it makes on the device."""
    name = look.qualified(node.func)
    if name not in HOST_TYPES:
        return None
    made = updated.with_changes(func=look.code("{torch}." + name.rpartition(".")[2]))
    return Hit(Kind.TENSOR_TYPE, instead=look.code("{made}.to({device})", made=made))


def marked_range(node: cst.Call, updated: cst.Call, look: Look) -> Hit | None:
    """``torch.cuda.nvtx.range("forward")``."""
    if look.qualified(node.func) != "torch.cuda.nvtx.range":
        return None
    return Hit(
        Kind.CUDA_ONLY, instead=updated.with_changes(func=look.code("{torch}.profiler.record_function"))
    )


def device_object(node: cst.Call, updated: cst.Call, look: Look) -> cst.CSTNode | None:
    """``torch.device(DEVICE.type)``, which another rule has made, is ``DEVICE``."""
    if (
        look.qualified(node.func) != "torch.device"
        or len(updated.args) != 1
        or node.args[0].value is updated.args[0].value
    ):
        return None
    made = f"{look.device}.type"
    return look.code("{device}") if source_of(updated.args[0].value) == made else None


def mixed_precision(node: cst.Call, updated: cst.Call, look: Look) -> Hit | None:
    """``torch.cuda.amp.autocast(enabled=...)``, and ``torch.amp.GradScaler()``, which is CUDA's unless it is told."""
    name = look.qualified(node.func)
    first = keyword(node.args, "device") is None and not any(arg.keyword is None for arg in node.args)
    if name in ("torch.amp.GradScaler", "torch.GradScaler", "torch.amp.grad_scaler.GradScaler") and first:
        args = [_first(look.code("{device}.type"), updated.args), *updated.args]
        return Hit(Kind.AMP, instead=updated.with_changes(args=args))
    if name not in AMP:
        return None
    kind = look.code("{device}.type")
    if "custom_" in name:
        if any(arg.keyword is None for arg in node.args):  # custom_fwd(forward): used as a function
            new = look.code(
                AMP[name] + "({function}, device_type={device}.type)", function=updated.args[0].value
            )
            return Hit(Kind.AMP, instead=new)
        named = cst.Arg(kind, keyword=cst.Name("device_type"), equal=_tight(), comma=_comma(updated.args))
        args = [named, *updated.args]
    else:
        args = [_first(kind, updated.args), *_named(updated.args, name)]
    return Hit(Kind.AMP, instead=updated.with_changes(func=look.code(AMP[name]), args=args))


def seeded(node: cst.Call, updated: cst.Call, look: Look) -> Hit | None:
    """``torch.cuda.manual_seed_all(seed)``: a rewrite only where the host gets the same seed, since this one would seed it, too."""
    if look.qualified(node.func) not in SEEDS:
        return None
    if (
        len(node.args) == 1
        and ast.unparse(ast.parse(source_of(node.args[0].value), mode="eval")) in look.seeds
    ):
        return Hit(Kind.SEED, instead=updated.with_changes(func=look.code("{torch}.manual_seed")))
    return Hit(
        Kind.SEED, Need.HAND, "torch.manual_seed seeds every device; this would change the host's seed"
    )


def extension(node: cst.Call, updated: cst.Call, look: Look) -> Hit | None:
    """``CUDAExtension(...)``, and sources for CUDA's compiler."""
    module, _, name = look.qualified(node.func).rpartition(".")
    if module != "torch.utils.cpp_extension" or name not in EXTENSIONS:
        return None
    sources = " ".join(source_of(arg.value) for arg in node.args)
    if name != "CUDAExtension" and keyword(node.args, "cuda_sources") is None and ".cu" not in sources:
        return None
    return Hit(
        Kind.EXTENSION,
        Need.BLOCKED,
        "CUDA sources: write the kernel for the vendor, flroute.vendor.kernel",
        at=node.func,
        runs=False,
    )


def chooses_device(node: cst.Call, updated: cst.Call, look: Look) -> Hit | None:
    """``Trainer(...)`` of transformers asks what PyTorch was built for, and takes the host where that is not there."""
    name = look.qualified(node.func)
    if name not in CHOOSING:
        return None
    return Hit(Kind.CHOOSES_DEVICE, Need.HAND, CHOOSING[name], at=node.func, runs="lightning" not in name)


def without_kernel(node: cst.Call, updated: cst.Call, look: Look) -> Hit | None:
    """A function of PyTorch's whose op the vendor has no kernel for."""
    module, _, name = look.qualified(node.func).rpartition(".")
    if module not in _OPS or _OPS[module] + name not in look.lacking:
        return None
    return Hit(Kind.NO_KERNEL, Need.NOTHING, "the host computes it; --strict refuses that", at=node.func)


def old_profile(node: cst.Call, updated: cst.Call, look: Look) -> Hit | None:
    """``profile(use_cuda=True)``."""
    given = keyword(node.args, "use_cuda")
    if given is None or "profile" not in look.qualified(node.func):
        return None
    if source_of(given.value) != "True" or "autograd" not in look.qualified(node.func):
        return Hit(
            Kind.PROFILER, Need.HAND, "torch.profiler.profile() records every device there is", at=given
        )
    named = given.with_changes(keyword=cst.Name("use_device"), value=look.code("{device}.type"))
    return Hit(
        Kind.PROFILER,
        instead=updated.with_changes(
            args=[named if old is given else new for old, new in zip(node.args, updated.args, strict=True)]
        ),
        at=given,
    )


def _is_method(node: cst.Call, name: str, look: Look) -> bool:
    func = node.func
    return (
        isinstance(func, cst.Attribute)
        and func.attr.value == name
        and look.qualified(func) != f"torch.{name}"
        and not look.names.is_other_module(func.value)
    )


def _named(args: Sequence[cst.Arg], name: str) -> list[cst.Arg]:
    """Arguments of ``torch.cuda.amp.autocast`` by name; those of a scaler keep their order."""
    if "autocast" not in name:
        return list(args)
    return [
        arg.with_changes(keyword=cst.Name(AUTOCAST_PARAMETERS[position]), equal=_tight())
        if arg.keyword is None and not arg.star
        else arg
        for position, arg in enumerate(args)
    ]


def _first(value: cst.BaseExpression, others: Sequence[cst.Arg]) -> cst.Arg:
    return cst.Arg(value, comma=_comma(others))


def _comma(others: Sequence[cst.Arg]) -> cst.Comma | cst.MaybeSentinel:
    return cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")) if others else cst.MaybeSentinel.DEFAULT


def _tight() -> cst.AssignEqual:
    return cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
