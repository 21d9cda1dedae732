"""What a scan finds: every line of the hand-labelled scripts, and no line that only mentions cuda."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomllib
import torch

from flroute import registry
from flroute.cuda_alias.table import patches
from flroute.device.torch_fl.absent import why_absent
from flroute.scan.cuda_names import LIBRARIES, redirected
from flroute.scan.files import scan_file
from flroute.scan.findings import KINDS, Finding, Kind, Need, Verdict
from flroute.scan.ops import ops_without_kernels
from flroute.scan.page import to_markdown
from flroute.scan.rewriter import scan_source
from support import Plugin, Vendors, make_vendor_object, throw_away_vendors

vendors = pytest.fixture(throw_away_vendors)
SCRIPTS = Path(__file__).parent / "scripts"
LABELS = tomllib.loads((SCRIPTS / "labels.toml").read_text(encoding="utf-8"))


def found_in(source: str) -> tuple[Finding, ...]:
    return scan_source(source, "train.py").findings


def test_every_script_is_labelled() -> None:
    assert sorted(LABELS) == sorted(path.stem for path in SCRIPTS.glob("*.py"))


@pytest.mark.parametrize("name", LABELS)
def test_a_script_has_the_findings_that_a_person_found(name: str) -> None:
    labelled = {(line, kind) for kind, lines in LABELS[name].items() for line in lines}
    scan = scan_file(SCRIPTS / f"{name}.py")
    assert {(finding.line, finding.kind.value) for finding in scan.findings} == labelled
    assert scan.verdict is Verdict.RUNS  # as tests of `flroute run` show for each of them


NEUTRAL = """
import logging, os
import torch
from torch import nn
import mylib.cuda as settings
"cuda"
log = logging.getLogger("cuda")
def train(model, x, dtype, names):
    '''Moves to "cuda" by .cuda(); device="cuda:0".'''
    log.info("on cuda:0, not cpu")  # device = "cuda"
    print("cuda", f"cuda:{x.device.index}")
    if not names:
        raise ValueError("cuda")
    counts = {"cuda": 1, "cuda:0": 2}
    counts["cuda"] += 1
    title = "cuda"
    os.path.join("src", "cuda")
    x = x.to(dtype).to(torch.float16).to(other=1)
    x = x.to(dtype=torch.float32)
    name = names.get("cuda")
    if name == "cuda" or "cuda" in names:
        settings.enable("cuda")
    for kind in ("cuda", "opencl"):
        name = kind
    parser.add_argument("--cuda", action="store_true")
    args.cuda = settings.cuda() or getattr(args, "cuda", False)
    module = getattr(torch, x.device.type)
    __import__("mylib.cuda")
    row = {"cuda_time": 1.0, "kinds": ("cuda", "opencl")}
    nn.Linear(2, 2, device=x.device)
    return torch.ones(2, device=model.device)
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
"""


BY_NAME = """
import importlib
import torch
a = getattr(torch, "cuda").device_count()  # cuda-api --fix
x = getattr(torch.ones(2), "cuda")()  # cuda-method by hand
b = getattr(x, "is_cuda", False)  # device-check by hand
c = importlib.import_module("torch.cuda.amp")  # amp by hand
d = __import__("flash_attn")  # library blocked
getattr(torch.backends, "cudnn").benchmark = True  # backend-flags nothing
torch._C._cuda_clearCublasWorkspaces()  # cuda-only by hand
e = torch.autograd.profiler.emit_nvtx()  # cuda-only by hand
f = {"cuda_time_total", "cpu_time"}  # profiler --fix
devices = ["cuda", "mps"]  # device-string by hand
g = f"{'cuda' if a else 'cpu'}_time"  # device-string by hand
h = f"{'cuda' if a else 'cpu'}:{a}"  # device-string --fix
@torch.library.custom_op("mine::double", mutates_args=(), device_types="cuda")  # device-string --fix
def double(x):
    return x * 2
double.register_kernel("cuda")(lambda x: x * 2)  # device-string --fix
library.impl("double", double, "CUDA")  # device-string by hand
i = location.startswith("cuda")  # device-check --fix
j = location.startswith("mps") or location.startswith("cuda")  # device-check --fix
"""


def test_names_that_are_given_as_text_and_devices_among_others() -> None:
    expected = [
        (number, *line.partition("# ")[2].split(" ", 1))
        for number, line in enumerate(BY_NAME.splitlines(), 1)
        if "# " in line
    ]
    scan = scan_source(BY_NAME, "train.py")
    assert [(f.line, f.kind.value, f.need.value) for f in scan.findings] == expected
    assert scan.fixed is not None
    assert "a = torch.get_device_module().device_count()" in scan.fixed
    assert """h = f"{DEVICE.type if a else 'cpu'}:{a}\"""" in scan.fixed
    again = scan_source(scan.fixed, "train.py")
    assert again.fixed in (None, scan.fixed)


def test_mentions_of_cuda_are_no_findings() -> None:
    assert found_in(NEUTRAL) == ()


HEAD = "import os\nimport torch\nimport torch as t\nfrom torch import cuda\nfrom torch.cuda import amp\nimport torch.nn.functional as F\nimport torch.distributed as dist\n"
LINES = [
    # line, kind, need, and the code instead of it
    ('x = f(device="cuda")', Kind.DEVICE_STRING, Need.FIX, "x = f(device=DEVICE.type)"),
    ("x = f(device='cuda:1')", Kind.DEVICE_STRING, Need.FIX, "x = f(device=f'{DEVICE.type}:1')"),
    ('x = y.to("cuda")', Kind.DEVICE_STRING, Need.FIX, "x = y.to(DEVICE.type)"),
    ('x = y.to(f"cuda:{rank}")', Kind.DEVICE_STRING, Need.FIX, 'x = y.to(f"{DEVICE.type}:{rank}")'),
    ('x = "cuda:%d" % rank', Kind.DEVICE_STRING, Need.FIX, 'x = f"{DEVICE.type}:%d" % rank'),
    ('x = "cuda:{}".format(rank)', Kind.DEVICE_STRING, Need.FIX, 'x = f"{DEVICE.type}:{{}}".format(rank)'),
    ('x = "cuda:" + str(rank)', Kind.DEVICE_STRING, Need.FIX, 'x = f"{DEVICE.type}:" + str(rank)'),
    ('x = t.device("cuda")', Kind.DEVICE_STRING, Need.FIX, "x = DEVICE"),
    ('x = torch.device("cuda", 1)', Kind.DEVICE_STRING, Need.FIX, "x = torch.device(DEVICE.type, 1)"),
    ('self.device = "cuda"', Kind.DEVICE_STRING, Need.FIX, "self.device = DEVICE.type"),
    ('device: str = "cuda"', Kind.DEVICE_STRING, Need.FIX, "device: str = DEVICE.type"),
    ('config["device"] = "cuda"', Kind.DEVICE_STRING, Need.FIX, 'config["device"] = DEVICE.type'),
    ('config = {"device": "cuda"}', Kind.DEVICE_STRING, Need.FIX, 'config = {"device": DEVICE.type}'),
    ('x = config.get("device", "cuda")', Kind.DEVICE_STRING, Need.FIX, 'x = config.get("device", DEVICE.type)'),
    ('x = device or "cuda"', Kind.DEVICE_STRING, Need.FIX, "x = device or DEVICE.type"),
    ('x = "cuda" if flag else "cpu"', Kind.DEVICE_STRING, Need.FIX, 'x = DEVICE.type if flag else "cpu"'),
    ('devices = ["cpu", "cuda"]', Kind.DEVICE_STRING, Need.FIX, 'devices = ["cpu", DEVICE.type]'),
    ('p.add_argument("--device", default="cuda")', Kind.DEVICE_STRING, Need.FIX, 'p.add_argument("--device", default=DEVICE.type)'),
    ('def go(x, device="cuda"): ...', Kind.DEVICE_STRING, Need.FIX, "def go(x, device=DEVICE.type): ..."),
    ('x = y.is_cuda', Kind.DEVICE_CHECK, Need.FIX, 'x = y.device.type != "cpu"'),
    ("x = not y.is_cuda", Kind.DEVICE_CHECK, Need.FIX, 'x = y.device.type == "cpu"'),
    ("x = [y.is_cuda]", Kind.DEVICE_CHECK, Need.FIX, 'x = [(y.device.type != "cpu")]'),
    ('x = y.device.type == "cuda"', Kind.DEVICE_CHECK, Need.FIX, 'x = y.device.type != "cpu"'),
    ("x = device != 'cuda'", Kind.DEVICE_CHECK, Need.FIX, "x = device == 'cpu'"),
    ('x = "cuda" in str(device)', Kind.DEVICE_CHECK, Need.FIX, 'x = "cpu" not in str(device)'),
    ('x = device.startswith("cuda")', Kind.DEVICE_CHECK, Need.FIX, 'x = not device.startswith("cpu")'),
    ('x = device.type in ("cuda", "mps")', Kind.DEVICE_CHECK, Need.HAND, None),
    ('if device.type == "cuda": a()\nelif device.type == "mps": b()', Kind.DEVICE_CHECK, Need.HAND, None),
    ('if device.type == "cuda": a()\nelse: b()', Kind.DEVICE_CHECK, Need.FIX, 'if device.type != "cpu": a()'),
    ("x = y.cuda()", Kind.CUDA_METHOD, Need.FIX, "x = y.to(DEVICE)"),
    ("x = y.cuda(rank, True)", Kind.CUDA_METHOD, Need.FIX, "x = y.to(rank, non_blocking=True)"),
    ("x = y.cuda(non_blocking=True)", Kind.CUDA_METHOD, Need.FIX, "x = y.to(DEVICE, non_blocking=True)"),
    ("x = y.cpu()", Kind.HOST_COPY, Need.NOTHING, None),
    ("x = y.to(device)", Kind.MOVE, Need.NOTHING, None),
    ("x = torch.load(f, map_location=device)", Kind.MAP_LOCATION, Need.NOTHING, None),
    ('x = torch.load(f, map_location="cuda:0")', Kind.MAP_LOCATION, Need.FIX, "x = torch.load(f, map_location=DEVICE)"),
    ('x = torch.load(f, map_location="cuda:1")', Kind.MAP_LOCATION, Need.FIX, 'x = torch.load(f, map_location=f"{DEVICE.type}:1")'),
    ("torch.cuda.synchronize()", Kind.CUDA_API, Need.FIX, "torch.get_device_module().synchronize()"),
    ("x = torch.load(f, map_location=lambda s, l: s.cuda())", Kind.MAP_LOCATION, Need.FIX, "x = torch.load(f, map_location=DEVICE)"),
    ('x = torch.load(f, map_location={"cuda:1": "cpu"})', Kind.MAP_LOCATION, Need.FIX, 'x = torch.load(f, map_location={"cuda:1": "cpu", f"{DEVICE.type}:1": "cpu"})'),
    ("x = cuda.is_available()", Kind.CUDA_API, Need.FIX, "x = torch.accelerator.is_available()"),
    ("x = torch.cuda.memory_allocated(device=1)", Kind.CUDA_API, Need.FIX, "x = torch.get_device_module().memory_allocated(device=1)"),
    ("x = torch.cuda.Event(enable_timing=True)", Kind.CUDA_API, Need.FIX, "x = torch.get_device_module().Event(enable_timing=True)"),
    ("x = (torch.cuda.OutOfMemoryError, cuda.AcceleratorError)", Kind.CUDA_API, Need.FIX, "x = (torch.OutOfMemoryError, torch.AcceleratorError)"),
    ("def g(s: torch.cuda.Stream): ...", Kind.CUDA_API, Need.FIX, "def g(s: torch.Stream): ..."),
    ("x: torch.cuda.device", Kind.CUDA_API, Need.HAND, None),
    ("x = torch.cuda.CUDAGraph()", Kind.CUDA_ONLY, Need.BLOCKED, None),
    ('torch.cuda.nvtx.range_push("a")', Kind.CUDA_ONLY, Need.HAND, None),
    ("torch.cuda.manual_seed(3)", Kind.SEED, Need.HAND, None),
    ("torch.manual_seed(s + 1); cuda.manual_seed_all(s+1)", Kind.SEED, Need.FIX, "torch.manual_seed(s + 1); torch.manual_seed(s+1)"),
    ("x = amp.autocast(False, torch.half)", Kind.AMP, Need.FIX, "x = torch.autocast(DEVICE.type, enabled=False, dtype=torch.half)"),
    ("x = amp.GradScaler(1024.0)", Kind.AMP, Need.FIX, "x = torch.amp.GradScaler(DEVICE.type, 1024.0)"),
    ("x = torch.amp.GradScaler()", Kind.AMP, Need.FIX, "x = torch.amp.GradScaler(DEVICE.type)"),
    ('x = torch.autocast("cuda")', Kind.AMP, Need.FIX, "x = torch.autocast(DEVICE.type)"),
    ("x = torch.cuda.FloatTensor([1.0])", Kind.TENSOR_TYPE, Need.FIX, "x = torch.FloatTensor([1.0]).to(DEVICE)"),
    ("x = y.type(torch.cuda.FloatTensor)", Kind.TENSOR_TYPE, Need.HAND, None),
    ('torch.set_default_tensor_type("torch.cuda.FloatTensor")', Kind.TENSOR_TYPE, Need.HAND, None),
    ('x = torch.Generator(device="cuda")', Kind.GENERATOR, Need.HAND, None),
    ('dist.init_process_group("nccl")', Kind.COLLECTIVES, Need.FIX, "dist.init_process_group(torch.distributed.get_default_backend_for_device(DEVICE))"),
    ('x = "nccl" if cuda.is_available() else "gloo"', Kind.COLLECTIVES, Need.FIX, "x = torch.distributed.get_default_backend_for_device(DEVICE)"),
    ('x = e.table(sort_by="self_cuda_time_total")', Kind.PROFILER, Need.FIX, 'x = e.table(sort_by="self_device_time_total")'),
    ("x = event.cuda_time", Kind.PROFILER, Need.FIX, "x = event.device_time"),
    ("x = [torch.profiler.ProfilerActivity.CUDA]", Kind.PROFILER, Need.HAND, None),
    ("torch.backends.cudnn.benchmark = True", Kind.BACKEND_FLAGS, Need.NOTHING, None),
    ('os.environ["CUDA_VISIBLE_DEVICES"] = "0"', Kind.ENVIRONMENT, Need.NOTHING, None),
    ('x = os.environ.get("NCCL_DEBUG")', Kind.ENVIRONMENT, Need.NOTHING, None),
    ("x = torch.utils.cpp_extension.CUDAExtension('a', [])", Kind.EXTENSION, Need.BLOCKED, None),
    ("x = torch.utils.cpp_extension.load('a', ['a.cpp', 'a.cu'])", Kind.EXTENSION, Need.BLOCKED, None),
    ("import flash_attn.flash_attn_interface", Kind.LIBRARY, Need.BLOCKED, None),
    ("try: import cupy\nexcept ImportError: cupy = None", Kind.LIBRARY, Need.NOTHING, None),
]  # fmt: skip


@pytest.mark.parametrize(("line", "kind", "need", "instead"), LINES, ids=[line for line, *_ in LINES])
def test_a_line_its_kind_and_its_edit(line: str, kind: Kind, need: Need, instead: str | None) -> None:
    scan = scan_source(f"{HEAD}{line}\n", "train.py")
    at = HEAD.count("\n") + 1
    assert kind in {finding.kind for finding in scan.findings if finding.line == at and finding.need is need}
    if instead is not None:
        assert scan.fixed is not None
        assert instead in scan.fixed.splitlines()


@pytest.mark.parametrize("pattern", ['"cuda"', '"cuda:0"', '"cuda" | "xpu"', '"mps" | "cuda" as kind'])
def test_a_match_of_a_device_is_left_to_a_person(pattern: str) -> None:
    source = f"{HEAD}match x.device.type:\n    case {pattern}: y = 'cuda'\n"
    (found,) = (f for f in scan_source(source, "train.py").findings if f.line == HEAD.count("\n") + 2)
    assert (found.kind, found.need) == (Kind.DEVICE_CHECK, Need.HAND)
    assert not scan_source(source.replace("x.device.type", "x.name"), "train.py").fixed


def test_kinds_are_all_tried() -> None:
    elsewhere = {Kind.UNREADABLE, Kind.NO_KERNEL, Kind.AUTOGRAD_FUNCTION, Kind.CHOOSES_DEVICE}
    assert {kind for _, kind, *_ in LINES} | elsewhere == set(Kind) == set(KINDS)


def test_a_call_of_the_files_own_function_is_known_by_its_parameters() -> None:
    own = 'def train(model, where_device): ...\ndef tell(a, b): ...\ntrain(m, "cuda")\ntell(m, "cuda")\n'
    assert [finding.line for finding in found_in(own)] == [3]


def test_what_names_stand_for_is_asked_of_the_imports() -> None:
    other = "import numba\nfrom mylib import autocast\nx = numba.cuda()\nwith autocast(): ...\n"
    assert found_in(other) == ()
    both = "try:\n    from torch.amp import autocast\nexcept ImportError:\n    from torch.cuda.amp import autocast\nautocast('cuda')\n"
    assert [(f.line, f.kind, f.need) for f in found_in(both)] == [
        (4, Kind.AMP, Need.HAND),
        (5, Kind.AMP, Need.FIX),
    ]


def test_an_autograd_function_needs_what_its_lines_need() -> None:
    made = "import torch\nclass F(torch.autograd.Function):\n    def forward(ctx, x):\n        {}\n"
    needs = {
        "x.cuda()": Need.FIX,
        "torch.cuda.nvtx.mark('a')": Need.HAND,
        "torch.cuda.CUDAGraph()": Need.BLOCKED,
    }
    for line, need in needs.items():
        assert (Kind.AUTOGRAD_FUNCTION, need) in {(f.kind, f.need) for f in found_in(made.format(line))}
    assert found_in(made.format("x + 1")) == ()


def test_the_verdict_is_that_of_the_worst_line() -> None:
    source = "import torch\nx = torch.ones(2)\n"
    assert scan_source(source, "a.py").verdict is Verdict.NEUTRAL
    source += "x = x.cuda()\n"
    assert scan_source(source, "a.py").verdict is Verdict.RUNS
    source += "import pytorch_lightning as pl\npl.Trainer()\n"
    assert scan_source(source, "a.py").verdict is Verdict.EDITS
    source += "import tinycudann\n"
    assert scan_source(source, "a.py").verdict is Verdict.BLOCKED


def test_what_is_redirected_is_what_the_alias_redirects() -> None:
    refused = {
        f"{p.owner}.{p.name}"
        for p in patches()
        if p.owner == "torch.cuda" and p.meaning == why_absent(p.name)
    }
    assert "torch.cuda.CUDAGraph" in refused
    assert redirected().isdisjoint(refused)
    assert {"torch.cuda.synchronize", "torch.cuda.nvtx.range_push", "torch.cuda.FloatTensor"} <= redirected()
    graph, stream = found_in("import torch\ntorch.cuda.CUDAGraph()\ntorch.cuda.Stream()\n")
    assert (graph.runs, stream.runs) == (False, True)


def test_every_public_name_of_cuda_has_an_answer() -> None:
    source = "import torch\n" + "".join(f"torch.cuda.{name}\n" for name in torch.cuda.__all__)
    lines = {finding.line for finding in found_in(source)}
    assert lines == set(range(2, 2 + len(torch.cuda.__all__)))


def test_functions_without_a_kernel(vendors: Vendors) -> None:
    vendors.register(Plugin(make_vendor_object("bare")))
    lacking = ops_without_kernels(registry.load().vendor("bare").name)
    assert "cosh" in lacking
    assert not {"linear", "view", "reshape"} & lacking
    source = (
        "import torch\nimport torch.nn.functional as F\ntorch.cosh(x)\nF.linear(x, w)\ntorch.linalg.eig(x)\n"
    )
    found = scan_source(source, "a.py", lacking=lacking).findings
    assert [(f.line, f.kind, f.need) for f in found] == [
        (3, Kind.NO_KERNEL, Need.NOTHING),
        (5, Kind.NO_KERNEL, Need.NOTHING),
    ]
    assert scan_source(source, "a.py").findings == ()


def test_the_page_is_the_generated_one() -> None:
    page = (Path(__file__).parents[1] / "docs" / "scan.md").read_text(encoding="utf-8")
    assert page == to_markdown()
    assert all(f"| `{kind.value}` |" in page for kind in Kind)
    assert all(f"| `{name}` |" in page for name in LIBRARIES)
