"""FlagGems' operators, whose kernels are Triton's, compiled for the CPU and compared with PyTorch's own.

PyTorch's sample inputs (OpInfo) are run on the host, and every aten call that FlagGems has an operator for is written
down with its arguments. Then each is made again with FlagGems' operator and judged: by PyTorch's result in the same
dtype, or in float64 where it rounds. Every operator runs in a process of its own, on tensors with a guard on both sides.

    python -m pip install flag-gems==5.0.2 --no-deps sqlalchemy==2.0.48      (in an environment of its own: it pins numpy 1)
    python benchmarks/flag_gems.py --markdown docs/flag_gems.md              (or: --only softmax,addmm)

Ends with status 1 if a value is wrong whose cause is not written down below.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import multiprocessing
import os
import sys
import types
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from flroute.reference_vendor import triton_cpu
from flroute.reference_vendor.triton_cpu import launcher

DTYPES = (torch.float32, torch.bfloat16, torch.int64)
CALLS = 4
"""Of each operator and dtype."""
SAMPLES = 12
LARGEST = 200_000
"""Elements of all arguments together."""
TIMEOUT = 120
GUARD, MARK = 1 << 16, 0xAB
"""Bytes on both sides of every tensor, and what they hold: FlagGems' kernels read, and some write, outside their tensors."""

RANDOM = frozenset({
    "bernoulli_.float", "exponential_", "multinomial", "native_dropout", "normal.Tensor_Tensor", "normal.Tensor_float",
    "normal.float_Tensor", "normal_", "rand", "rand_like", "randn", "randn_like", "randperm", "uniform_",
})  # fmt: skip
"""These draw other numbers than PyTorch: only shape, dtype and that the values are finite is compared."""

ORDERS = {"sort": 1, "topk": 2}
"""Equal elements may come in any order: what the indices point to is compared. Where the axis is among the arguments."""

FLAG_GEMS_OWN = {
    "_unique2": "leaves out the results that are not asked for, which PyTorch returns empty",
    "addmv": "multiplies integers by beta and alpha as floats, which PyTorch cuts to integers first",
    "addr": "multiplies by beta = 0, where PyTorch leaves the input out",
    "atan2": "keeps the dtype of integers, where PyTorch gives float32",
    "avg_pool2d": "divides by the whole window where ceil_mode lets it reach past the padding",
    "avg_pool2d_backward": "divides by the whole window where ceil_mode lets it reach past the padding",
    "bincount": "keeps the dtype of integer weights, where PyTorch gives float64",
    "erf": "keeps the dtype of integers, where PyTorch gives float32",
    "index_add_": "takes a source with strides for a contiguous one",
    "linalg_vector_norm": "fills masked elements with 0 where ord is negative, and 0 to a negative power is infinite",
    "log": "keeps the dtype of integers, where PyTorch gives float32",
    "masked_scatter": "does not broadcast the input to the mask",
    "native_batch_norm": "returns the running statistics in eval, where PyTorch returns nothing",
    "native_dropout_backward": "keeps the dtype of integers, where PyTorch gives float32",
    "native_group_norm": "masks by the number of channels, not of a group's: 3 channels read a fourth, of the next group",
    "native_group_norm_backward": "masks by the number of channels, not of a group's: 3 channels read a fourth, of the next group",
    "native_layer_norm": "returns mean and rstd in another shape",
    "nll_loss_forward": "leaves total_weight unwritten where the reduction is a sum",
    "normal.Tensor_Tensor": "gives float32 for bfloat16",
    "normal.Tensor_float": "gives float32 for bfloat16",
    "pow.Tensor_Tensor": "raises integers to a power in float32",
    "pow_.Tensor": "raises integers to a power in float32",
    "sum": "keeps the dtype of int32, where PyTorch gives int64",
    "topk": "fills masked integers with nothing: rows of another length than a power of two are sorted with what is there",
    "unique_consecutive": "leaves out the results that are not asked for, which PyTorch returns empty",
}
"""Where FlagGems' result is not PyTorch's, and no compiler would make it so."""


class Call(NamedTuple):
    """One call of an aten op."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor among the arguments."""
        return [leaf for leaf in tree_flatten(tuple(self))[0] if isinstance(leaf, torch.Tensor)]

    def map(self, function: Callable[[Any], Any]) -> Call:
        """The same call, each argument replaced."""
        arguments, keywords = tree_map(function, (self.arguments, self.keywords))
        return Call(arguments, keywords)

    def __str__(self) -> str:
        def one(leaf: Any) -> str:
            if not isinstance(leaf, torch.Tensor):
                return repr(leaf)
            strided = "" if leaf.is_contiguous() else f" strides {list(leaf.stride())}"
            return f"{str(leaf.dtype)[6:]}{list(leaf.shape)}{strided}"

        shown = tree_map(one, tuple(self))
        return ", ".join([*map(str, shown[0]), *(f"{name}={value}" for name, value in shown[1].items())])


class Outcome(NamedTuple):
    """What became of a call, and why.

    ``right``, ``elsewhere`` (right, but no kernel was launched), ``wrong``, ``outside`` (a write beyond its tensors),
    ``refused`` by the compiler, ``raised`` by FlagGems, or ``died``.
    """

    kind: str
    call: str
    cause: str


# -- what to run --------------------------------------------------------------------------------------


class Record(TorchDispatchMode):
    """Writes down the aten calls whose names are wanted, a few for each dtype, no two alike."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self.names = frozenset(names)
        self.calls: dict[str, list[Call]] = defaultdict(list)
        self._seen: Counter[object] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call, name = Call(args, kwargs or {}), func._schema.name[6:] + _dotted(func._schema.overload_name)
        if name in self.names and self._wanted(name, call):
            self.calls[name].append(call.map(copy))
        return func(*args, **(kwargs or {}))

    def _wanted(self, name: str, call: Call) -> bool:
        tensors = call.tensors()
        if any(t.dtype.is_complex or t.numel() == 0 or t.layout != torch.strided for t in tensors):
            return False
        dtype = tensors[0].dtype if tensors else None
        if (dtype not in {*DTYPES, torch.bool, None}) or sum(t.numel() for t in tensors) > LARGEST:
            return False
        alike = name, dtype, str(call)
        if self._seen[alike] or self._seen[name, dtype] >= CALLS:
            return False
        self._seen.update([alike, (name, dtype)])
        return True


def _dotted(overload: str) -> str:
    return f".{overload}" if overload else ""


def copy(leaf: Any) -> Any:
    """A tensor's copy with the same strides; anything else as it is."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    leaf = leaf.detach()
    if 0 in leaf.stride():  # one element in several places
        return leaf.clone()
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype).copy_(leaf)


def record(names: Iterable[str]) -> dict[str, list[Call]]:
    """The calls that PyTorch's samples make, forward, in place and backward."""
    found = Record(names)
    for dtype in DTYPES:
        for op in op_db:
            if dtype not in op.supported_dtypes("cpu"):
                continue
            for sample, _ in zip(_samples(op, dtype), range(SAMPLES), strict=False):
                for form in (op.op, op.inplace_variant):
                    if form is not None:
                        with torch.inference_mode():  # composite ops arrive whole
                            _run(found, form, sample)
                if dtype.is_floating_point and op.supports_autograd:
                    _run(found, op.op, sample, backward=True)
    return found.calls


def _samples(op: Any, dtype: torch.dtype) -> Iterator[Any]:
    with contextlib.suppress(
        Exception
    ):  # PyTorch's own generators fail for some dtypes; those samples are not run
        yield from op.sample_inputs("cpu", dtype)


def _run(mode: Record, form: Callable[..., Any], sample: Any, *, backward: bool = False) -> None:
    with (
        contextlib.suppress(Exception),
        mode,
    ):  # a sample that PyTorch itself refuses, or a sparse one, is none of ours
        arguments, keywords = tree_map(copy, ((sample.input, *sample.args), sample.kwargs))
        if backward and isinstance(arguments[0], torch.Tensor):
            arguments = (arguments[0].requires_grad_(), *arguments[1:])
        result = form(*arguments, **keywords)
        if backward:
            leaves = [
                leaf
                for leaf in tree_flatten(result)[0]
                if isinstance(leaf, torch.Tensor) and leaf.requires_grad
            ]
            torch.autograd.backward([leaf.sum() for leaf in leaves])


# -- FlagGems -----------------------------------------------------------------------------------------


def operators() -> dict[str, Callable[..., Any]]:
    """FlagGems' operators by aten's names. To be called inside ``triton_cpu.active()``."""
    gems = _import_flag_gems()
    found = {}
    for name, function, *condition in gems._FULL_CONFIG:
        if all(holds() for holds in condition):
            module = sys.modules.get(
                f"flag_gems.ops.{function.__name__}"
            )  # not what the vendor "arm" puts in its place
            found[name] = getattr(module, function.__name__, function)
    return found


def _import_flag_gems() -> Any:
    """FlagGems for its vendor "arm", the one whose device is the CPU."""
    import triton.runtime.autotuner
    from triton.language.extra.cuda import libdevice

    os.environ["GEMS_VENDOR"] = "arm"
    folder = Path(__file__).resolve().parent  # this file has the package's name
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != folder]
    place = importlib.util.find_spec("flag_gems")
    if place is None or place.origin is None:
        raise SystemExit("flag-gems is not installed: see the first lines of this file")
    _allow_vendor(Path(place.origin).parent / "runtime" / "common.py")
    for name, content in (("cpu", {"libdevice": libdevice}), ("cpu.libdevice", vars(libdevice))):
        module = types.ModuleType(f"triton.language.extra.{name}")
        vars(module).update({key: value for key, value in content.items() if not key.startswith("__")})
        sys.modules[module.__name__] = module

    tuner, cpu = triton.runtime.autotuner.Autotuner, torch.cpu
    initialize = tuner.__init__

    def with_one_configuration(
        self: Any, function: Any, names: Any, configs: Any, *rest: Any, **keywords: Any
    ) -> None:
        initialize(self, function, names, configs[:1], *rest, **keywords)

    tuner.__init__, torch.cpu = with_one_configuration, Device()
    try:
        import flag_gems
    finally:
        tuner.__init__, torch.cpu = initialize, cpu
    entry = sys.modules["flag_gems.utils.libentry"]
    entry.minor_version = min(entry.minor_version, 6)  # newer Triton needs the arguments passed as 3.6 did
    sys.modules["flag_gems.utils.codegen_config_utils"].get_codegen_config().prefer_block_pointer = False
    return flag_gems


def _allow_vendor(path: Path) -> None:
    """Put "arm", which FlagGems has files for, on its list of vendors."""
    spec = importlib.util.spec_from_file_location("flag_gems.runtime.common", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.vendors = Enum("vendors", [*(vendor.name for vendor in module.vendors), "ARM"], start=0)
    module.vendors.get_all_vendors = classmethod(lambda cls: {vendor.name.lower(): vendor for vendor in cls})
    sys.modules[spec.name] = module


class Device:
    """What FlagGems asks of ``torch.cuda`` for a GPU."""

    def __init__(self) -> None:
        self.default_generators = [self]
        self._state = torch.zeros(2, dtype=torch.int64)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.modules["torch.cpu"], name)

    def device(self, device: object) -> contextlib.AbstractContextManager[None]:
        """A scope in which a device is the current one."""
        return contextlib.nullcontext()

    _DeviceGuard = device

    def current_device(self) -> int:
        """There is one."""
        return 0

    def get_device_properties(self, device: object = None) -> types.SimpleNamespace:
        """Sizes that FlagGems chooses blocks by."""
        return types.SimpleNamespace(
            multi_processor_count=2, L2_cache_size=1 << 20, major=0, minor=0, name="cpu"
        )

    def get_state(self) -> torch.Tensor:
        """A seed and an offset, as cuda's generators have them."""
        return self._state.clone().view(torch.uint8)

    def set_state(self, state: torch.Tensor) -> None:
        """The reverse of ``get_state``."""
        self._state = state.view(torch.int64).clone()


# -- the judge ----------------------------------------------------------------------------------------


class Guarded(TorchDispatchMode):
    """Puts every new tensor between two guards."""

    def __init__(self) -> None:
        super().__init__()
        self._memory: list[tuple[torch.Tensor, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        old = {tensor.untyped_storage().data_ptr() for tensor in Call(args, kwargs or {}).tensors()}
        result = func(*args, **(kwargs or {}))
        return tree_map(lambda leaf: leaf if _storage(leaf) in old else self.put(leaf), result)

    def put(self, leaf: Any) -> Any:
        """A tensor moved between guards; anything else as it is."""
        if not isinstance(leaf, torch.Tensor):
            return leaf
        size = leaf.untyped_storage().nbytes()
        memory = torch.full((2 * GUARD + size,), MARK, dtype=torch.uint8)
        if size:
            memory[GUARD : GUARD + size] = torch.empty(0, dtype=torch.uint8).set_(leaf.untyped_storage())
        self._memory.append((memory, size))
        offset = GUARD // leaf.element_size() + leaf.storage_offset()
        return torch.empty(0, dtype=leaf.dtype).set_(
            memory.untyped_storage(), offset, leaf.shape, leaf.stride()
        )

    def broken(self) -> bool:
        """Whether something wrote outside a tensor."""
        return any(
            bool((memory[:GUARD] != MARK).any() or (memory[GUARD + size :] != MARK).any())
            for memory, size in self._memory
        )


def _storage(leaf: Any) -> int:
    return leaf.untyped_storage().data_ptr() if isinstance(leaf, torch.Tensor) else 0


_WIDER = {torch.float32: torch.float64, torch.bfloat16: torch.float64}


def widen(leaf: Any) -> Any:
    """The same in float64."""
    if isinstance(leaf, torch.Tensor):
        return leaf.to(_WIDER.get(leaf.dtype, leaf.dtype), copy=True)
    return _WIDER.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf


def judge(name: str, function: Callable[..., Any], call: Call) -> Outcome | None:
    """One call of FlagGems' operator, compared; None if PyTorch itself refuses it."""
    op = getattr(getattr(torch.ops.aten, name.partition(".")[0]), name.partition(".")[2] or "default")
    try:
        expected = _results(op, call.map(copy))
    except Exception:  # noqa: BLE001 - whatever PyTorch says of its own sample, there is nothing to compare with
        return None
    try:
        exact = _results(op, call.map(widen))
    except Exception:  # noqa: BLE001 - an op without a float64 form is judged by its own dtype
        exact = expected
    guard, launches = Guarded(), _LAUNCHES[0]
    mine = call.map(copy).map(guard.put)
    try:
        with guard:
            found = _results(function, mine)
    except triton_cpu.UnsupportedKernelError as error:
        return Outcome("refused", str(call), f"{error.op}: {error.why}")
    except Exception as error:  # noqa: BLE001 - FlagGems' own limits come in every type
        return Outcome("raised", str(call), f"{type(error).__name__}: {error}".splitlines()[0])
    if guard.broken():
        return Outcome("outside", str(call), "writes outside its tensors")
    if name in ORDERS:
        found, expected, exact = (_chosen(name, call, results) for results in (found, expected, exact))
    difference = compare(found, expected, exact, values=name not in RANDOM)
    if difference:
        return Outcome("wrong", str(call), difference)
    return Outcome("right" if _LAUNCHES[0] > launches else "elsewhere", str(call), "")


def _results(function: Callable[..., Any], call: Call) -> list[Any]:
    """What it returns, and its arguments afterwards."""
    returned = function(*call.arguments, **call.keywords)
    return [
        leaf for leaf in tree_flatten((returned, call))[0] if isinstance(leaf, (torch.Tensor, int, float))
    ]


def _chosen(name: str, call: Call, results: list[Any]) -> list[Any]:
    """For the indices that a sort gives, what they point to."""
    values, indices, data = results[:3]
    position = ORDERS[name]
    axis = call.arguments[position] if len(call.arguments) > position else call.keywords.get("dim", -1)
    return [values, torch.take_along_dim(data, indices, axis) if data.ndim else data]


def compare(found: list[Any], expected: list[Any], exact: list[Any], *, values: bool = True) -> str:
    """What is wrong, or nothing: a float may be as far off as ``assert_close`` allows, or four times as far as PyTorch's own."""
    if len(found) != len(expected):
        return f"{len(found)} results for {len(expected)}"
    for a, b, c in zip(found, expected, exact, strict=True):
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            if a != b:
                return f"{a!r} for {b!r}"
        elif a.shape != b.shape:
            return f"shape {list(a.shape)} for {list(b.shape)}"
        elif a.dtype != b.dtype:
            return f"{a.dtype} for {b.dtype}"
        elif values and not _close(a, b, c):
            return f"values, by up to {(a.double() - c.double()).abs().nan_to_num(0).max().item():.3g}"
    return ""


def _close(found: torch.Tensor, expected: torch.Tensor, exact: torch.Tensor) -> bool:
    with contextlib.suppress(AssertionError):
        torch.testing.assert_close(found, expected, equal_nan=True)
        return True
    if not found.is_floating_point():
        return False
    mine, theirs = ((t.double() - exact.double()).abs() for t in (found, expected))
    ordinary = mine.isfinite() & theirs.isfinite()
    same = torch.equal(found.isnan(), expected.isnan()) and torch.equal(found.isinf(), expected.isinf())
    scale = exact.double()[ordinary].abs().max().item() if ordinary.any() else 0.0
    allowed = (
        4 * theirs[ordinary].max().item() + 4 * torch.finfo(found.dtype).eps * scale
        if ordinary.any()
        else 0.0
    )
    return same and bool((mine[ordinary] <= allowed).all())


# -- the run ------------------------------------------------------------------------------------------

_LAUNCHES = [0]


def count_launches() -> None:
    """An operator that falls back on PyTorch, or on a view, has proved nothing."""
    launch = launcher.Kernel.launch

    def counted(self: launcher.Kernel, *arguments: Any, **keywords: Any) -> None:
        _LAUNCHES[0] += 1
        launch(self, *arguments, **keywords)

    launcher.Kernel.launch = counted  # type: ignore[method-assign]


def judge_apart(name: str, function: Callable[..., Any], calls: list[Call]) -> list[Outcome]:
    """All calls of an operator in a process of its own: one that dies is one that failed."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(there, name, function, calls))
    process.start()
    there.close()
    try:
        if here.poll(TIMEOUT):
            return here.recv()
        process.kill()
        return [Outcome("died", "", f"took more than {TIMEOUT} seconds")]
    except EOFError:
        process.join()
        return [Outcome("died", "", f"the process ended with status {process.exitcode}")]
    finally:
        process.join()


def _send(connection: Any, name: str, function: Callable[..., Any], calls: list[Call]) -> None:
    warnings.simplefilter("ignore")
    connection.send([outcome for call in calls if (outcome := judge(name, function, call))])
    connection.close()


def verdict(outcomes: list[Outcome]) -> str:
    """One word for an operator: the worst of its calls decides, and one right call is needed."""
    kinds = {outcome.kind for outcome in outcomes}
    for worst, word in (
        ("died", "failed"),
        ("wrong", "failed"),
        ("outside", "failed"),
        ("refused", "refused"),
    ):
        if worst in kinds:
            return word
    if "right" not in kinds:
        return "not run"
    return "passed in part" if "raised" in kinds else "passed"


def cause(name: str, outcomes: list[Outcome]) -> str:
    """Why an operator did not pass: FlagGems' own reason where it is known, or the first of each kind that was found."""
    known = [FLAG_GEMS_OWN[name]] if name in FLAG_GEMS_OWN and verdict(outcomes) == "failed" else []
    found = {
        o.cause: o
        for o in outcomes
        if o.kind not in {"right", "elsewhere"} and not (known and o.kind == "wrong")
    }
    shown = [
        f"{'FlagGems ' if o.kind == 'raised' else ''}{o.kind}: {o.cause}" for o in list(found.values())[:2]
    ]
    if not shown and not known and verdict(outcomes) == "not run":
        return "no kernel was launched"
    return "; ".join([*(f"FlagGems: {text}" for text in known), *shown])


def unexplained(results: dict[str, list[Outcome]]) -> list[str]:
    """The operators that failed for no reason of FlagGems' own."""
    return [
        name
        for name, outcomes in results.items()
        if verdict(outcomes) == "failed" and name not in FLAG_GEMS_OWN
    ]


def markdown(results: dict[str, list[Outcome]], versions: str) -> str:
    """The page ``docs/flag_gems.md``."""
    verdicts = Counter(map(verdict, results.values()))
    counts = ", ".join(f"{verdicts[word]} {word}" for word in VERDICTS)
    lines = [
        "# FlagGems' operators on the CPU",
        "",
        f"{len(results)} operators: {counts}. {versions}.",
        "",
        *(f"- **{word}**: {meaning}" for word, meaning in VERDICTS.items()),
        "",
        "Calls are those that PyTorch's own sample inputs make, in float32, bfloat16 and int64; floats are judged by float64.",
        "",
        "Printed by `python benchmarks/flag_gems.py --markdown docs/flag_gems.md`.",
        "",
        "| operator | verdict | right calls | cause of the others |",
        "|---|---|---:|---|",
    ]
    for name, outcomes in sorted(results.items()):
        right = sum(outcome.kind == "right" for outcome in outcomes)
        why = cause(name, outcomes).replace("|", "\\|")
        lines.append(f"| `{name}` | {verdict(outcomes)} | {right} of {len(outcomes)} | {why} |")
    return "\n".join([*lines, ""])


VERDICTS = {
    "passed": "every call gave PyTorch's values, through kernels compiled here",
    "passed in part": "so did every call that FlagGems' Python accepts; it raises for others, mostly for want of dimensions",
    "refused": "the compiler does not know something that a kernel uses, and says so when it is compiled",
    "failed": "some values, shapes or dtypes are not PyTorch's; the cause lies in FlagGems' own code",
    "not run": "FlagGems launches no kernel, or raises, for every call",
}


def main() -> int:
    """Run what is asked for; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", help="operators by aten's names, with or without overload, separated by commas"
    )
    parser.add_argument("--markdown", type=Path, help="write the page to this file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    count_launches()
    wanted = frozenset(filter(None, options.only.split(",")))
    results = {}
    with triton_cpu.active():
        functions = operators()
        calls = record(name for name in functions if not wanted or wanted & {name, name.partition(".")[0]})
        for name in sorted(calls):
            results[name] = judge_apart(name, functions[name], calls[name])
            print(f"{name:32} {verdict(results[name]):16} {cause(name, results[name])}", flush=True)
    found = Counter(map(verdict, results.values()))
    print(f"{len(results)} operators:", ", ".join(f"{found[word]} {word}" for word in VERDICTS))
    if options.markdown:
        from importlib.metadata import version

        import triton

        versions = f"flag-gems {version('flag-gems')}, Triton {triton.__version__}, PyTorch {torch.__version__.partition('+')[0]}"
        options.markdown.write_text(markdown(results, versions))
    for name in unexplained(results):
        print(f"{name}: wrong, and not for a known reason of FlagGems' own")
        for outcome in results[name]:
            if outcome.kind in {"wrong", "outside", "died"}:
                print(f"    {outcome.call}\n        {outcome.cause}")
    return bool(unexplained(results))


if __name__ == "__main__":
    sys.exit(main())
