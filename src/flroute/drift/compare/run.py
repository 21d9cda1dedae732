"""One run of a model, as it is kept to be compared with another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from flroute.drift.compare.kept import Kept
from flroute.drift.measures import Difference
from flroute.vocabulary import Phase


@dataclass(frozen=True)
class Local:
    """How far the results of one call are from what the host computes in float64 from the same arguments.

    Attributes:
        difference: of the result that is farthest beyond its tolerance.
        excess: how many times the tolerance it is; above 1 the call makes an error.
        tolerance: in words.
        source: who states that tolerance.
    """

    difference: Difference
    excess: float
    tolerance: str
    source: str


@dataclass(frozen=True)
class OpCall:
    """One call of an op that computes.

    Attributes:
        op: ``aten::mm``.
        module: where in the model, ``encoder.layer.3``; empty for the model itself.
        turn: how often that module was entered before; always 0 in the backward pass, whose nodes do not know it.
        phase: forward or backward.
        results: what it returned and what it wrote; numbers as tensors.
        local: ``None`` where the host cannot be asked.
        unjudged: why, then.
        seeded: it draws random numbers.
        reads: what of its result can decide what the program does next: ``values``, ``shape``, or nothing.
        part_of: the op that was split into this one and others, with the number of its call; empty if none was.
        loose: why what comes after it cannot be compared with another run number for number; empty if it can.
        quiet: it moves or makes tensors, and computes nothing.
    """

    op: str
    module: str
    turn: int
    phase: Phase
    results: tuple[Kept, ...]
    local: Local | None = None
    unjudged: str = ""
    seeded: bool = False
    reads: str = ""
    quiet: bool = False
    part_of: tuple[str, int] = ("", 0)
    loose: str = ""

    @property
    def place(self) -> str:
        """Where it was called, in words."""
        return place_in_words(self.module, self.phase)


def place_in_words(module: str, phase: Phase) -> str:
    """``the backward pass of encoder.layer.3``."""
    name = module or "the model itself"
    return f"the backward pass of {name}" if phase is Phase.BACKWARD else name


@dataclass
class LayerCall:
    """One call of a module.

    Attributes:
        module: its path.
        kind: its class.
        turn: how often it was called before.
        outputs: the tensors it returned.
        gradients: of these, as the backward pass brought them.
        ended: how many ops had been called when it returned.
    """

    module: str
    kind: str
    turn: int
    outputs: list[Kept | None] = field(default_factory=list)
    gradients: list[Kept | None] = field(default_factory=list)
    ended: int = 0


@dataclass(frozen=True)
class Tensors:
    """One kind of tensors that a run ends with: gradients of parameters or inputs, or buffers.

    Attributes:
        what: ``gradient of`` or ``buffer``.
        values: by name.
    """

    what: str
    values: dict[str, Kept]


@dataclass(frozen=True)
class Origin:
    """What was run, and where: runs of different models cannot be compared.

    Attributes:
        place: as asked for, ``fl`` or ``cpu``.
        device: ``reference:0 (flroute-reference 0.1.0)``.
        flroute: its version.
        torch: its version.
        model: its class.
        modules: path and class of each module.
        parameters: dtype and shape of each parameter and buffer.
        checkpoint: a digest of their elements.
        inputs: dtype and shape of each tensor in the inputs, and a digest of its elements.
        seed: of the random numbers.
        training: whether the model was in training mode.
        backward: whether there was a backward pass.
    """

    place: str
    device: str
    flroute: str
    torch: str
    model: str
    modules: dict[str, str]
    parameters: dict[str, str]
    checkpoint: str
    inputs: dict[str, str]
    seed: int
    training: bool
    backward: bool


@dataclass
class Run:
    """Everything that is kept of one run.

    Attributes:
        origin: what was run, and where.
        ops: the calls of ops that compute, in order.
        layers: the calls of modules, in the order in which they were left.
        ends: what the run ends with.
        noise: rounding errors that the host itself makes in the model's dtype, by ``key`` of a layer's tensor; may be empty.
        error: what ended the run early, in words.
        raised_in: module and phase in which it did.
        raised: the error itself, where it was run in this process.
        outputs: what the model returned, by name.
        remarks: what could not be seen.
    """

    origin: Origin
    ops: list[OpCall] = field(default_factory=list)
    layers: list[LayerCall] = field(default_factory=list)
    ends: list[Tensors] = field(default_factory=list)
    noise: dict[str, float] = field(default_factory=dict)
    error: str = ""
    raised_in: tuple[str, Phase] = ("", Phase.FORWARD)
    raised: Exception | None = None
    outputs: list[tuple[str, Kept]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def tensors(self) -> Iterator[tuple[str, Kept]]:
        """Each layer's outputs, their gradients, and what the run ends with, by a key of its own, in the order computed."""
        for layer in self.layers:
            yield from _keyed("output", layer, layer.outputs)
        yield from self._ends(lambda what: what == "result")
        for layer in reversed(self.layers):
            yield from _keyed("gradient", layer, layer.gradients)
        yield from self._ends(lambda what: what != "result")

    def _ends(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, Kept]]:
        for end in self.ends:
            if wanted(end.what):
                yield from ((key(end.what, name), value) for name, value in end.values.items())


def _keyed(what: str, layer: LayerCall, kept: list[Kept | None]) -> Iterator[tuple[str, Kept]]:
    for at, value in enumerate(kept):
        if value is not None:
            yield key(what, layer.module, layer.turn, at), value


def key(what: str, name: str, turn: int = 0, at: int = 0) -> str:
    """What a tensor of a run is called in that run's ``noise``."""
    return f"{what}|{name}|{turn}|{at}"
