"""What a scan finds: a line, what is device-bound about it, and what it takes to make it run elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class Kind(str, Enum):
    """What is device-bound about a line."""

    DEVICE_STRING = "device-string"
    DEVICE_CHECK = "device-check"
    CUDA_METHOD = "cuda-method"
    HOST_COPY = "host-copy"
    MOVE = "move"
    MAP_LOCATION = "map-location"
    CUDA_API = "cuda-api"
    CUDA_ONLY = "cuda-only"
    SEED = "seed"
    AMP = "amp"
    TENSOR_TYPE = "tensor-type"
    GENERATOR = "generator"
    COLLECTIVES = "collectives"
    PROFILER = "profiler"
    BACKEND_FLAGS = "backend-flags"
    ENVIRONMENT = "environment"
    EXTENSION = "extension"
    LIBRARY = "library"
    CHOOSES_DEVICE = "chooses-device"
    AUTOGRAD_FUNCTION = "autograd-function"
    NO_KERNEL = "no-kernel"
    UNREADABLE = "unreadable"


@dataclass(frozen=True)
class KindFacts:
    """What there is to say about every finding of a kind: what it looks like, and the edit."""

    looks_like: str
    edit: str


KINDS: Mapping[Kind, KindFacts] = {
    Kind.DEVICE_STRING: KindFacts(
        '`"cuda"`, `"cuda:1"`, `f"cuda:{rank}"` where a device is expected', '`DEVICE.type`, `f"{DEVICE.type}:1"`'
    ),
    Kind.DEVICE_CHECK: KindFacts(
        '`x.is_cuda`, `device.type == "cuda"`, `"cuda" in str(device)`', 'the same question about `"cpu"`, turned round'
    ),
    Kind.CUDA_METHOD: KindFacts("`x.cuda()`, `model.cuda(rank)`", "`x.to(DEVICE)`, `model.to(rank)`"),
    Kind.HOST_COPY: KindFacts("`x.cpu()`", "none: it copies to the host from any device, and waits for it"),
    Kind.MOVE: KindFacts("`x.to(device)`", "none: it names no kind of device"),
    Kind.MAP_LOCATION: KindFacts('`map_location="cuda:0"`', '`map_location=DEVICE`; none if it names no kind'),
    Kind.CUDA_API: KindFacts(
        "`torch.cuda.synchronize()`", "`torch.get_device_module().synchronize()`, or a name of `torch.accelerator`"
    ),
    Kind.CUDA_ONLY: KindFacts("`torch.cuda.CUDAGraph`, `torch.cuda.nvtx`", "by hand: no other device has it"),
    Kind.SEED: KindFacts("`torch.cuda.manual_seed_all(seed)`", "`torch.manual_seed(seed)`, which seeds every device"),
    Kind.AMP: KindFacts(
        "`torch.cuda.amp.autocast()`, `GradScaler()`", "`torch.autocast(DEVICE.type)`, `torch.amp.GradScaler(DEVICE.type)`"
    ),
    Kind.TENSOR_TYPE: KindFacts("`torch.cuda.FloatTensor`", "by hand: say `dtype=` and `device=`"),
    Kind.GENERATOR: KindFacts('`torch.Generator("cuda")`', "by hand: `torch.Generator()`, and draw on the host"),
    Kind.COLLECTIVES: KindFacts(
        '`init_process_group("nccl")`', "`torch.distributed.get_default_backend_for_device(DEVICE)`"
    ),
    Kind.PROFILER: KindFacts(
        "`ProfilerActivity.CUDA`, `cuda_time_total`", "`torch.profiler.supported_activities()`, `device_time_total`"
    ),
    Kind.BACKEND_FLAGS: KindFacts("`torch.backends.cudnn.benchmark = True`", "none: without effect on other devices"),
    Kind.ENVIRONMENT: KindFacts(
        '`os.environ["CUDA_VISIBLE_DEVICES"]`', "none: without effect on other devices; choose one by its index"
    ),
    Kind.EXTENSION: KindFacts("`CUDAExtension`, `load_inline(cuda_sources=...)`", "by hand: a kernel of the vendor's"),
    Kind.LIBRARY: KindFacts("`import flash_attn`", "by hand: what to use instead is said; none if its absence is handled"),
    Kind.CHOOSES_DEVICE: KindFacts(
        "`transformers.Trainer(...)`, `accelerate.Accelerator()`", "by hand: these choose among devices they know; tell them"
    ),
    Kind.AUTOGRAD_FUNCTION: KindFacts(
        "a `torch.autograd.Function` with device-bound lines", "those of the lines in it"
    ),
    Kind.NO_KERNEL: KindFacts(
        "`torch.linalg.eig(x)`, with `--device`", "none: the host computes it; `--strict` refuses that"
    ),
    Kind.UNREADABLE: KindFacts("a syntax error, bytes that are no text", "by hand: nothing is known of this file"),
}  # fmt: skip


class Need(str, Enum):
    """Who has to do something about a finding before the code is device-neutral."""

    NOTHING = "nothing"  #: it works on any device as it stands
    FIX = "--fix"  #: `flroute scan --fix` rewrites it
    HAND = "by hand"  #: it takes a person
    BLOCKED = "blocked"  #: no edit of this line helps: something has to be replaced


class Verdict(str, Enum):
    """What becomes of a file on another device, from best to worst."""

    NEUTRAL = "is device-neutral"
    RUNS = "runs as is under flroute run"
    EDITS = "needs the listed edits"
    BLOCKED = "is blocked"
    UNREADABLE = "cannot be read"


@dataclass(frozen=True)
class Finding:
    """One device-bound expression.

    Attributes:
        path: the file.
        line: counted from 1; in a notebook within its cell.
        column: counted from 1.
        kind: what is device-bound about it.
        need: who has to do something about it.
        runs: `flroute run` redirects it, or it needs nothing.
        source: the expression, cut where it is long.
        advice: what to write instead, or what to do.
        cell: of a notebook, counted from 1.
    """

    path: str
    line: int
    column: int
    kind: Kind
    need: Need
    runs: bool
    source: str
    advice: str
    cell: int | None = None

    @property
    def place(self) -> str:
        """``12``, or ``cell 3, line 12``."""
        return str(self.line) if self.cell is None else f"cell {self.cell}, line {self.line}"


@dataclass(frozen=True)
class FileScan:
    """A file with its findings, in the order of its lines.

    Attributes:
        path: the file.
        findings: those of need `NOTHING` among them.
        fixed: its text after every rewrite, if that differs.
    """

    path: str
    findings: tuple[Finding, ...]
    fixed: str | None = None

    @property
    def verdict(self) -> Verdict:
        """The worst of what its findings say."""
        return verdict_of(self.findings)

    @property
    def device_bound(self) -> tuple[Finding, ...]:
        """The findings that need something."""
        return tuple(finding for finding in self.findings if finding.need is not Need.NOTHING)


@dataclass(frozen=True)
class Scan:
    """What was found in all files.

    Attributes:
        files: those with findings.
        looked_at: how many files there were.
    """

    files: tuple[FileScan, ...]
    looked_at: int

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Of all files."""
        return tuple(finding for file in self.files for finding in file.findings)

    @property
    def verdict(self) -> Verdict:
        """That of the worst file."""
        return verdict_of(self.findings)

    @property
    def exit_code(self) -> int:
        """0: nothing to do; 1: something needs an edit; 2: a file cannot be read."""
        if self.verdict is Verdict.UNREADABLE:
            return 2
        return int(any(file.device_bound for file in self.files))

    @property
    def verdict_in_words(self) -> str:
        """``train.py and 2 more need ...``: one sentence for all files."""
        return f"{self.verdict.value}{blockers(self.findings)}"

    def by_kind(self) -> dict[tuple[Kind, Need], list[Finding]]:
        """The findings grouped by the edit they need, in the order of `Kind`."""
        groups: dict[tuple[Kind, Need], list[Finding]] = {}
        needs = list(Need)
        order = list(Kind)
        for finding in sorted(self.findings, key=lambda f: (order.index(f.kind), needs.index(f.need))):
            groups.setdefault((finding.kind, finding.need), []).append(finding)
        return groups

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        counts = Counter(finding.need.value for finding in self.findings)
        return {
            "verdict": self.verdict.name.lower(),
            "looked_at": self.looked_at,
            "needs": {need.value: counts[need.value] for need in Need},
            "files": [
                {
                    "path": file.path,
                    "verdict": file.verdict.name.lower(),
                    "findings": [
                        {name: value for name, value in asdict(found).items() if name != "path" and value is not None}
                        for found in file.findings
                    ],
                }
                for file in self.files
            ],
        }  # fmt: skip


def verdict_of(findings: Iterable[Finding]) -> Verdict:
    """The worst of what findings say."""
    return max(map(_verdict_of_one, findings), key=list(Verdict).index, default=Verdict.NEUTRAL)


def blockers(findings: Iterable[Finding]) -> str:
    """`` by flash_attn, torch.cuda.CUDAGraph``: what stands in the way, nothing if nothing does."""
    names = dict.fromkeys(finding.source for finding in findings if finding.need is Need.BLOCKED)
    return f" by {', '.join(names)}" if names else ""


def _verdict_of_one(finding: Finding) -> Verdict:
    if finding.kind is Kind.UNREADABLE:
        return Verdict.UNREADABLE
    if finding.need is Need.BLOCKED:
        return Verdict.BLOCKED
    if not finding.runs:
        return Verdict.EDITS
    return Verdict.NEUTRAL if finding.need is Need.NOTHING else Verdict.RUNS
