"""Runs in files: two machines, each with a device, are compared by what each of them has recorded.

A file is what ``torch.save`` makes of an index in JSON and of the tensors it names, and is loaded with ``weights_only=True``: it
cannot run code. Large tensors are sampled (``kept.py``), so that its size is bounded by the number of calls, not by the model.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from flroute.drift.compare.compare import Tolerances, compare_runs, with_noise
from flroute.drift.compare.comparison import Comparison
from flroute.drift.compare.kept import Kept, Statistics
from flroute.drift.compare.observe import Loss, Subject, observe
from flroute.drift.compare.run import LayerCall, Local, OpCall, Origin, Run, Tensors
from flroute.drift.measures import Difference
from flroute.errors import CheckpointError, ComparisonError
from flroute.vocabulary import Phase

FORMAT = 1
_KIND = "flroute run"


def record(
    model: torch.nn.Module,
    inputs: Any,
    path: str | os.PathLike[str],
    device: str = "fl",
    *,
    kwargs: Mapping[str, Any] | None = None,
    loss: Loss | None = None,
    backward: bool = True,
    seed: int = 0,
    **settings: Any,
) -> Run:
    """Run a model on a device and write what ``compare`` needs of it into a file.

    Args:
        model: a copy of it runs.
        inputs: as for ``compare``.
        path: the file to write; missing directories are made.
        device: vendor or device, as for ``enable``; ``"cpu"`` for the host.
        kwargs: as for ``compare``.
        loss: likewise.
        backward: likewise.
        seed: likewise.
        settings: of the session it runs in, as for ``enable``.

    Returns:
        The run; ``error`` in it says if the model raised something.

    Example:
        >>> import flroute, tempfile, torch
        >>> model, x = torch.nn.Linear(8, 4), torch.ones(2, 8)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     runs = [f"{folder}/{device}.flrun" for device in ("reference", "cpu")]
        ...     for run, device in zip(runs, ("reference", "cpu")):
        ...         _ = flroute.record(model, x, run, device)
        ...     flroute.compare_saved(*runs).passed
        True
    """
    subject = Subject(model, inputs, dict(kwargs or {}), loss, backward, seed, settings)
    run = with_noise(observe(subject, device), subject)
    save(run, path)
    return run


def compare_saved(
    a: str | os.PathLike[str], b: str | os.PathLike[str], *, tolerances: Tolerances | None = None
) -> Comparison:
    """Compare two runs that ``record`` wrote.

    Args:
        a: a file.
        b: the file of the run that it is compared with.
        tolerances: as for ``compare``.

    Raises:
        CheckpointError: a file is damaged, or of another format.
        ComparisonError: the runs are not of the same model, parameters, inputs and seed.
    """
    runs = [load(path) for path in (a, b)]
    if all(run.error for run in runs):
        raise ComparisonError(
            f"both runs ended early: {a} with {runs[0].error}, {b} with {runs[1].error}. Repair the model first"
        )
    return compare_runs(*runs, tolerances=tolerances)


def save(run: Run, path: str | os.PathLike[str]) -> Path:
    """Write a run into a file, and return its path; missing directories are made."""
    tensors: list[torch.Tensor] = []
    index = {
        "kind": _KIND,
        "format": FORMAT,
        **{name: _encoded(getattr(run, name), tensors) for name in _SAVED},
    }
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"index": json.dumps(index), "tensors": tensors}, target)
    return target


def load(path: str | os.PathLike[str]) -> Run:
    """Read a run from a file.

    Raises:
        CheckpointError: it is damaged, or of another format.
    """
    try:
        content = torch.load(Path(path), map_location="cpu", weights_only=True)
        index, tensors = json.loads(content["index"]), content["tensors"]
        if index.get("kind") != _KIND or index.get("format") != FORMAT:
            raise CheckpointError(
                f"{os.fspath(path)} is of format {index.get('format')}, and this flroute reads format {FORMAT}: record the run "
                f"again"
            )
        return _decoded_run(index, tensors)
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no file {os.fspath(path)}: `flroute record` writes one") from error
    except (
        RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError, KeyError, TypeError, IndexError,
        AttributeError,
    ) as error:  # fmt: skip
        if isinstance(error, CheckpointError):
            raise
        said = str(error).partition(". ")[0].partition("\n")[0] or type(error).__name__
        raise CheckpointError(
            f"{os.fspath(path)} cannot be read as a recorded run: {said}. It may be another kind of file, or cut off while it was "
            f"written or copied: record or fetch it again"
        ) from error


_SAVED = ("origin", "ops", "layers", "ends", "noise", "error", "raised_in", "remarks")


def _encoded(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return len(tensors) - 1
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _encoded(getattr(value, field.name), tensors) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _encoded(item, tensors) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(item, tensors) for item in value]
    return value.value if isinstance(value, Enum) else value


def _decoded_run(index: dict[str, Any], tensors: list[torch.Tensor]) -> Run:
    def kept(found: Any) -> Kept | None:
        if found is None:
            return None
        of = found["statistics"]
        return Kept(
            found["dtype"],
            tuple(found["shape"]),
            tensors[found["values"]],
            None if of is None else Statistics(**of),
        )

    return Run(
        origin=Origin(**index["origin"]),
        ops=[_decoded_op(found, kept) for found in index["ops"]],
        layers=[
            LayerCall(**{**found, **{what: [kept(item) for item in found[what]] for what in ("outputs", "gradients")}})
            for found in index["layers"]
        ],
        ends=[
            Tensors(found["what"], {name: k for name, item in found["values"].items() if (k := kept(item)) is not None})
            for found in index["ends"]
        ],
        noise=index["noise"],
        error=index["error"],
        raised_in=(index["raised_in"][0], Phase(index["raised_in"][1])),
        remarks=index["remarks"],
    )  # fmt: skip


def _decoded_op(found: dict[str, Any], kept: Callable[[Any], Kept | None]) -> OpCall:
    local = found["local"]
    if local is not None:
        local = Local(**{**local, "difference": Difference(**local["difference"])})
    results = tuple(k for item in found["results"] if (k := kept(item)) is not None)
    part_of = (found["part_of"][0], found["part_of"][1])
    return OpCall(**{
        **found, "phase": Phase(found["phase"]), "results": results, "local": local, "part_of": part_of
    })  # fmt: skip


def described(run: Run) -> dict[str, Any]:
    """What a run is, for programs."""
    return {
        **asdict(run.origin),
        "ops": len(run.ops),
        "layers": len(run.layers),
        "error": run.error,
        "remarks": run.remarks,
    }
