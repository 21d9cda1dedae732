"""The rules for what a vendor brings: a kernel can be called as its op's schema says, a decomposition replaces an op there is."""

from __future__ import annotations

import inspect
from typing import Any

from flroute.kernels import Decomposition, Kernel
from flroute.torch_compat import decomposition_of, find_op, overloads_of, schema_of

UNKNOWN_OP = "this PyTorch has no op"


def definition_of(definition: object) -> str:
    """``file:line`` of a definition, or its repr."""
    definition = getattr(definition, "func", definition)  # what a partial wraps
    try:
        file = inspect.getsourcefile(definition)  # type: ignore[arg-type]
        line = 1 if inspect.ismodule(definition) else inspect.getsourcelines(definition)[1]  # type: ignore[arg-type]
    except (TypeError, OSError):
        return repr(definition)
    return f"{file}:{line}"


def broken_kernel_rule(kernel: Any) -> str | None:
    """The rule a kernel breaks by itself, in words, or ``None``."""
    if not isinstance(kernel, Kernel):
        return f"kernels must be Kernel objects, got {kernel!r}"
    if not callable(kernel.function):
        return f"the kernel of {kernel.op} must be a function, got {kernel.function!r}"
    op = find_op(kernel.op)
    if op is None:
        overloads = ", ".join(overloads_of(kernel.op))
        hint = f"; its overloads are {overloads}" if overloads else ""
        return f"{UNKNOWN_OP} {kernel.op!r}, which kernel {kernel.name} computes{hint}"
    return _signature_rule(kernel, op)


def broken_decomposition_rule(brought: Any) -> str | None:
    """The rule a decomposition breaks, in words, or ``None``."""
    if not isinstance(brought, Decomposition):
        return f"decompositions must be Decomposition objects, got {brought!r}"
    op = find_op(brought.op)
    if op is None:
        return f"{UNKNOWN_OP} {brought.op!r}, which is to be decomposed"
    if brought.function is None and decomposition_of(op) is None:
        return f"PyTorch has no decomposition of {brought.op}: Decomposition({brought.op!r}, function) brings one"
    if brought.function is not None and not callable(brought.function):
        return f"the decomposition of {brought.op} must be a function, got {brought.function!r}"
    return None


def _signature_rule(kernel: Kernel, op: Any) -> str | None:
    """Whether the function can be called as the schema says, with the schema's own defaults."""
    schema = schema_of(op)
    try:
        parameters = inspect.signature(kernel.function).parameters
    except (ValueError, TypeError) as error:  # builtins, and numpy's ufuncs before numpy 2.4
        return f"kernel {kernel.name} has no signature to compare with {schema}: {error}; wrap it in a def"
    kinds = {parameter.kind for parameter in parameters.values()}
    if inspect.Parameter.VAR_POSITIONAL in kinds or inspect.Parameter.VAR_KEYWORD in kinds:
        return f"kernel {kernel.name}: *args and **kwargs hide what it serves; name the arguments of {schema}"
    positional = [p for p in parameters.values() if p.kind != inspect.Parameter.KEYWORD_ONLY]
    keywords = {p.name: p for p in parameters.values() if p.kind == inspect.Parameter.KEYWORD_ONLY}
    expected = [argument for argument in schema.arguments if not argument.kwarg_only]
    if len(positional) != len(expected):
        return f"kernel {kernel.name} takes {len(positional)} positional arguments, {kernel.op} has {len(expected)}: {schema}"
    named = {argument.name: argument for argument in schema.arguments if argument.kwarg_only}
    if set(keywords) != set(named):
        return (
            f"kernel {kernel.name} has the keyword-only arguments {sorted(keywords)}, {kernel.op} has {sorted(named)}: "
            f"{schema}"
        )
    pairs = [*zip(positional, expected, strict=True), *((keywords[name], named[name]) for name in named)]
    for parameter, argument in pairs:
        if not _same_default(parameter, argument):
            return (
                f"kernel {kernel.name}: argument {parameter.name!r} must have the default of the schema, "
                f"{argument.default_value if argument.has_default_value() else 'none'}: {schema}"
            )
    return None


def _same_default(parameter: inspect.Parameter, argument: Any) -> bool:
    if not argument.has_default_value():
        return parameter.default is inspect.Parameter.empty
    default, expected = parameter.default, argument.default_value
    if isinstance(default, tuple | list) and isinstance(expected, tuple | list):
        return list(default) == list(expected)
    return type(default) is type(expected) and bool(default == expected)
