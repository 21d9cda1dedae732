"""What an op's schema says about how to call it, read once per op."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch

from flroute.torch_compat import find_op, has_kernel, overloads_of, schema_of

Tag = torch.Tag

_METADATA = frozenset(
    {
        "aten::set_.source_Storage_storage_offset",
        "aten::set_.source_Storage",
        "aten::set_.source_Tensor",
        "aten::set_.source_Tensor_storage_offset",
        "aten::set_",
        "aten::_unsafe_view",
        "aten::lift",
    }
)
"""Metadata ops that the schema does not show to be views."""

_WHOLE = frozenset(
    {
        "aten::copy_",
        "aten::convolution",
        "aten::convolution_backward",
        "aten::mode.values",
        "aten::conj_physical_",
    }
)
"""Composites whose parts lead back to themselves on an out-of-tree device (``_copy_from``, ``convolution_overrideable``),
that name the devices they accept (``mode.values``), or that call a host kernel without asking the dispatcher
(``conj_physical_``)."""

_FACTORY_ARGUMENTS = frozenset({"dtype", "layout", "device", "pin_memory"})
"""What a new tensor is to be, where an ``out=`` says it by being there: ``arange`` takes them, ``arange.start_out`` does not."""

_COMPUTES_IN_DTYPE_OF_OUT = frozenset(
    {
        "aten::sum.IntList_out",
        "aten::nansum.out",
        "aten::mean.out",
        "aten::prod.int_out",
        "aten::cumsum.out",
        "aten::cumprod.out",
    }
)
"""Reductions whose ``dtype``, where it is not given, is that of ``out`` (``infer_dtype_from_optional``, ReduceOpsUtils.h)."""

_HOST_ARGUMENTS: dict[str, frozenset[str]] = {
    "aten::index": frozenset({"indices"}),
    "aten::index_put": frozenset({"indices"}),
    "aten::index_put_": frozenset({"indices"}),
    "aten::_index_put_impl_": frozenset({"indices"}),
    "aten::_unsafe_index": frozenset({"indices"}),
    "aten::_unsafe_index_put": frozenset({"indices"}),
    "aten::_pack_padded_sequence": frozenset({"lengths"}),
    "aten::_pack_padded_sequence_backward": frozenset({"batch_sizes"}),
    "aten::_pad_packed_sequence": frozenset({"batch_sizes"}),
    "aten::lstm": frozenset({"batch_sizes"}),
    "aten::gru": frozenset({"batch_sizes"}),
    "aten::rnn_tanh": frozenset({"batch_sizes"}),
    "aten::rnn_relu": frozenset({"batch_sizes"}),
    "aten::tensor_split": frozenset({"tensor_indices_or_sections"}),
    "aten::set_": frozenset({"source"}),
    "aten::_to_copy": frozenset({"self"}),
}
"""Tensor arguments that cuda, too, takes from the host."""


@dataclass(frozen=True)
class OpFacts:
    """Facts of one overload; ``op`` is the ``OpOverload``."""

    op: Any

    @cached_property
    def name(self) -> str:
        """``aten::add.Tensor``; the default overload has no suffix."""
        return str(self.op.name())

    @cached_property
    def schema(self) -> Any:
        """Its schema; ``schema.name`` has no overload in it: ``aten::add``."""
        return schema_of(self.op)

    @cached_property
    def arguments(self) -> tuple[Any, ...]:
        """The schema's arguments, in order."""
        return tuple(self.schema.arguments)

    @cached_property
    def takes_tensor_at(self) -> frozenset[int]:
        """The positions of arguments that are one tensor."""
        return frozenset(at for at, argument in enumerate(self.arguments) if str(argument.type) == "Tensor")

    @cached_property
    def is_metadata(self) -> bool:
        """Touches sizes, strides, offset or storage of a tensor, never its data."""
        if self.name in _METADATA:
            return True
        resizes = self.schema.name in ("aten::resize_", "aten::resize_as_")
        return bool(self.op.is_view) or (Tag.inplace_view in self.op.tags and not resizes)

    @cached_property
    def written(self) -> tuple[Any, ...]:
        """Arguments the op writes to."""
        return tuple(a for a in self.arguments if a.alias_info is not None and a.alias_info.is_write)

    @cached_property
    def out_names(self) -> tuple[str, ...]:
        """Names of the ``out=`` arguments."""
        return tuple(a.name for a in self.written if a.kwarg_only and a.is_out)

    @cached_property
    def writes_self(self) -> bool:
        """An in-place op: writes its first argument, a single tensor, and nothing else."""
        return (
            len(self.written) == 1
            and not self.out_names
            and bool(self.arguments)
            and self.written[0].name == self.arguments[0].name
            and self.arguments[0].type.kind() == "TensorType"
        )

    @cached_property
    def bumps_no_version(self) -> bool:
        """List ops that write; PyTorch does not bump version counters of a list under a dispatch mode."""
        return any(a.type.kind() == "ListType" for a in self.written)

    @cached_property
    def is_composite(self) -> bool:
        """PyTorch defines it in terms of other ops and has no host kernel of its own."""
        if self.name in _WHOLE:
            return False
        if has_kernel(self.name, "CompositeImplicitAutograd"):
            return True
        if has_kernel(self.name, "CPU"):
            return False
        return has_kernel(self.name, "CompositeExplicitAutograd") or has_kernel(
            self.name, "CompositeExplicitAutogradNonFunctional"
        )

    @cached_property
    def is_seeded(self) -> bool:
        """Draws random numbers."""
        return Tag.nondeterministic_seeded in self.op.tags

    @cached_property
    def may_see_conj(self) -> bool:
        """Lazy conj views reach it: PyTorch resolves them before every op that is not registered at this key."""
        return has_kernel(self.name, "Conjugate")

    @cached_property
    def may_see_neg(self) -> bool:
        """Likewise for lazy negation."""
        return has_kernel(self.name, "Negative")

    @cached_property
    def host_arguments(self) -> frozenset[str]:
        """Names of tensor arguments that may stay on the host."""
        return _HOST_ARGUMENTS.get(self.schema.name, frozenset())

    @cached_property
    def functional(self) -> Any | None:
        """The overload that returns new tensors where this one writes: ``add.Tensor`` for ``add_.Tensor`` and ``add.out``."""
        if not self.written:
            return None
        return self._same_but_writing_nothing(
            self.schema.name.removesuffix("_") if self.writes_self else self.schema.name
        )

    @cached_property
    def functional_of_list(self) -> Any | None:
        """The overload that returns a list of new tensors where this one writes the list it is given first."""
        if not (self.bumps_no_version and self.written[0].name == self.arguments[0].name):
            return None
        return self._same_but_writing_nothing(self.schema.name.removesuffix("_"))

    def _same_but_writing_nothing(self, packet: str) -> Any | None:
        wanted = [(a.name, str(a.type)) for a in self.arguments if a.name not in self.out_names]
        for name in overloads_of(packet):
            candidate: Any = find_op(name)
            arguments = schema_of(candidate).arguments
            taken = [(a.name, str(a.type)) for a in arguments]
            extra = {name for name, _ in taken if name in _FACTORY_ARGUMENTS} - {name for name, _ in wanted}
            if [item for item in taken if item[0] not in extra] == wanted and not any(
                a.alias_info is not None and a.alias_info.is_write for a in arguments
            ):
                return candidate
        return None

    @cached_property
    def out_says_dtype(self) -> bool:
        """An ``out=`` op that computes in the dtype of ``out``, which its functional form takes as ``dtype``."""
        if self.name in _COMPUTES_IN_DTYPE_OF_OUT:
            return True
        names = [] if self.functional is None else [a.name for a in schema_of(self.functional).arguments]
        return (
            len(self.out_names) == 1 and "dtype" in names and all(a.name != "dtype" for a in self.arguments)
        )


def with_numbers_as_tensors(facts: OpFacts, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with a tensor wherever the schema has one and PyTorch hands over the Python number of a scalar.

    ``x % 2`` reaches a kernel as ``remainder.Tensor(x, 2)``; the number takes part in type promotion as a number does.
    """
    if not any(isinstance(v, int | float | complex) for v in args):
        return args
    like = next((v for v in args if isinstance(v, torch.Tensor)), None)
    return tuple(
        torch.tensor(value, dtype=None if like is None else torch.result_type(like, value), device="cpu")
        if isinstance(value, int | float | complex) and str(argument.type) in ("Tensor", "Optional[Tensor]")
        else value
        for argument, value in zip(facts.arguments, args, strict=False)
    )


@cache
def facts_of(op: Any) -> OpFacts:
    """The facts of ``op``, cached."""
    return OpFacts(op)


def tensors_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """All tensors among the arguments, those in lists included, in order."""
    found: list[torch.Tensor] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found.extend(item for item in value if isinstance(item, torch.Tensor))
    return found


def bind(facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments that were passed, by the schema's names."""
    return {**{a.name: value for a, value in zip(facts.arguments, args, strict=False)}, **kwargs}


_WRITES_UNDECLARED: dict[str, tuple[str, ...]] = {
    "aten::native_batch_norm": ("running_mean", "running_var"),
    "aten::batch_norm": ("running_mean", "running_var"),
    "aten::cudnn_batch_norm": ("running_mean", "running_var"),
    "aten::instance_norm": ("running_mean", "running_var"),
}
"""Arguments an op writes to although its schema does not say so."""


def written_tensors(facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors among the arguments that the op writes to."""
    bound = bind(facts, args, kwargs)
    names = (*(a.name for a in facts.written), *_WRITES_UNDECLARED.get(facts.schema.name, ()))
    return tensors_in(tuple(bound[name] for name in names if name in bound), {})
