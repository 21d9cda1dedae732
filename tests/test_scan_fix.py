"""``flroute scan --fix``: the rewritten code is device-neutral, gives the same numbers, and is otherwise what it was."""

from __future__ import annotations

import ast
import difflib
import io
import re
import tokenize
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_scripts import SCRIPTS, Script, differences, host_numbers, numbers, run
from flroute.scan.files import scan_file, write
from flroute.scan.findings import FileScan, Kind, Need
from flroute.scan.headers import DEFINITION
from flroute.scan.rewriter import scan_source

every_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)

BY_HAND = {
    "gan": (
        ("Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor", "Tensor = lambda *a: torch.FloatTensor(*a).to(DEVICE)"),
        (".type(Tensor)", ".to(DEVICE, torch.float32)"),
    ),
    "profile_step": (('torch.cuda.nvtx.range_push("forward")', "pass"), ("torch.cuda.nvtx.range_pop()", "pass")),
    "hf_trainer": (("import os\n", 'import os\n\nos.environ["ACCELERATE_TORCH_DEVICE"] = "fl"\n'),),
}  # fmt: skip
"""What a person has to do after ``--fix``: where it says so, and nowhere else."""


def fixed(source: str) -> str:
    found = scan_source(source, "train.py").fixed
    assert found is not None
    return found


@pytest.mark.slow
@every_script
def test_a_rewritten_script_gives_the_same_numbers_without_the_alias(script: Script, tmp_path: Path) -> None:
    edited = scan_file(script.path).fixed
    assert edited is not None
    for old, new in BY_HAND.get(script.name, ()):
        assert old in edited
        edited = edited.replace(old, new)
    path = tmp_path / script.path.name
    path.write_text(edited, encoding="utf-8")
    done = run(script, path=path)
    assert done.returncode == 0, done.stderr
    assert differences(numbers(done.stdout), host_numbers(script), script.tolerance) == []


@every_script
def test_only_what_is_listed_is_left_to_a_person(script: Script) -> None:
    edited = fixed(script.path.read_text(encoding="utf-8"))
    left = scan_source(edited, "again.py").device_bound
    assert {finding.need for finding in left} <= {Need.HAND}
    assert bool(left) == (script.name in BY_HAND)


@every_script
def test_a_second_rewrite_changes_nothing(script: Script) -> None:
    edited = fixed(script.path.read_text(encoding="utf-8"))
    assert scan_source(edited, "again.py").fixed is None


@every_script
def test_lines_without_a_finding_are_as_they_were(script: Script) -> None:
    text = script.path.read_text(encoding="utf-8")
    scan = scan_file(script.path)
    touched = {finding.line for finding in scan.findings}
    before, after = text.splitlines(), fixed(text).splitlines()
    for what, start, end, *_ in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if what in ("replace", "delete"):
            lost = set(range(start + 1, end + 1)) - touched
            assert all(before[line - 1].lstrip().startswith(("import ", "from ")) for line in lost)
    assert comments(text) == comments(fixed(text))


def comments(text: str) -> list[str]:
    return [
        t.string for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type == tokenize.COMMENT
    ]


LINES = st.sampled_from(
    [
        "x = torch.ones(2).cuda()  # a comment",
        'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")',
        "with autocast(dtype = torch.half):\n\tx  =  x.cuda( non_blocking = True )",
        "scaler=GradScaler( )",
        "if x.is_cuda and device.type=='cuda' :\n    torch.cuda.synchronize( ) ;y = 1",
        'def place(x, device = "cuda:0"):\n    """On "cuda"."""\n    return x.to(device)',
        'name = f"cuda:{rank}"',
        'state = torch.load(path, map_location={"cuda:0": "cuda:1"})',
        "torch.manual_seed(0); torch.cuda.manual_seed_all(0)",
        'print("cuda")',
        "DEVICE = 3",
        "class F(torch.autograd.Function):\n  @staticmethod\n  @custom_fwd\n  def forward(ctx, x): return x.cuda()",
        "g = torch.cuda.CUDAGraph()",
        "lengths = x.cpu().numpy()",
        "\n# a paragraph of its own\n",
    ]
)
HEADS = st.sampled_from(
    [
        "import torch\nfrom torch.cuda.amp import GradScaler, autocast, custom_fwd\n",
        '#!/usr/bin/env python\n"""What it does."""\nfrom __future__ import annotations\n\nimport os, torch\n# of old\nfrom torch.cuda.amp import (\n    autocast,\n    GradScaler,\n    custom_fwd)\n',
        "import sys\nsys.path.append('.')\nimport torch\nfrom torch.cuda.amp import *\n",
        "try:\n    import torch\n    from torch.cuda.amp import autocast, GradScaler, custom_fwd\nexcept ImportError:\n    raise\n",
        "import torch.cuda.amp\nimport torch.cuda as cuda\nautocast, GradScaler = torch.cuda.amp.autocast, torch.cuda.amp.GradScaler\n",
    ]
)


@settings(max_examples=50)
@given(HEADS, st.lists(LINES, min_size=1, max_size=6), st.sampled_from(["\n", "\r\n"]))
def test_rewriting_is_idempotent_and_keeps_what_is_no_code(head: str, lines: list[str], newline: str) -> None:
    source = (head + "\n".join(lines) + "\n").replace("\n", newline)
    scan = scan_source(source, "a.py")
    edited = scan.fixed or source
    ast.parse(edited)
    assert scan_source(edited, "a.py").fixed in (None, edited)
    assert comments(source)[-1:] == comments(edited)[-1:]
    assert edited.count("\n") == edited.count(newline)
    assert edited.count(DEFINITION.format(torch="torch")) <= 1


def test_the_device_is_defined_once_below_the_imports() -> None:
    source = '"""Doc."""\n# of the author\nimport torch\nimport os\n\n\ndef f(x):\n    return x.cuda()\n'
    expected = f'"""Doc."""\n# of the author\nimport torch\nimport os\n\nDEVICE = {DEFINITION.format(torch="torch")}\n\n\ndef f(x):\n    return x.to(DEVICE)\n'
    assert fixed(source) == expected
    again = expected + "\n\ndef g(x):\n    return x.cuda()\n"
    assert fixed(again) == again.replace("x.cuda()", "x.to(DEVICE)")


@pytest.mark.parametrize(
    "source",
    [
        'import torch; x = torch.ones(2, device="cuda")\n',
        'import os\nconfig = {"device": "cuda"}\nimport torch\n',
        'import os\nos.environ["A"] = "1"\nimport torch as t\nx = t.ones(2, device="cuda")\n',
        'device = "cuda"\nimport torch as t\n',
    ],
)
def test_the_device_is_defined_before_it_is_used(source: str) -> None:
    exec(compile(fixed(source), "a.py", "exec"), {})
    assert scan_source(fixed(source), "a.py").fixed is None


def test_a_name_that_is_taken_is_left_alone() -> None:
    assert "ACCELERATOR = torch.accelerator" in fixed('import torch\nDEVICE = "cuda"\n')
    assert fixed('import torch\nDEVICE = "cuda"\n').endswith("DEVICE = ACCELERATOR.type\n")


def test_pytorch_is_imported_where_it_was_not() -> None:
    assert fixed(
        '"""Doc."""\nfrom __future__ import annotations\nconfig = {"device": "cuda"}\n'
    ).splitlines()[:4] == [
        '"""Doc."""',
        "from __future__ import annotations",
        "",
        "import torch",
    ]
    assert fixed("def f():\n    import torch\n    return torch.ones(2).cuda()\n").startswith("import torch\n")


def test_imports_go_when_nothing_uses_them_any_more() -> None:
    source = "import torch\n# mixed precision\nfrom torch.cuda.amp import autocast\nfrom torch import cuda, nn\n\nwith autocast(): ...\ncuda.synchronize()\nnn.Linear\n"
    edited = fixed(source)
    assert "import autocast" not in edited
    assert "from torch import nn\n" in edited
    assert "# mixed precision\n" in edited
    kept = (
        "import torch\nfrom torch.cuda.amp import autocast\nx = x.cuda()\n"  # others may import it from here
    )
    assert "from torch.cuda.amp import autocast" in fixed(kept)


def test_tabs_line_ends_mark_and_encoding_are_kept(tmp_path: Path) -> None:
    cases = {
        "tabs.py": b"import torch\ndef f(x):\n\tif x:\n\t\treturn x.cuda()\n",
        "crlf.py": b"import torch\r\nx = torch.ones(2).cuda()\r\n",
        "mark.py": b"\xef\xbb\xbfimport torch\nx = torch.ones(2).cuda()\n",
        "latin.py": "# -*- coding: latin-1 -*-\nimport torch\nname = 'Jürgen'\nx = torch.ones(2).cuda()\n".encode("latin-1"),
        "no_end.py": b"import torch\nx = torch.ones(2).cuda()",
    }  # fmt: skip
    for name, content in cases.items():
        path = tmp_path / name
        path.write_bytes(content)
        path.chmod(0o640)
        scan = scan_file(path)
        assert [finding.kind for finding in scan.device_bound] == [Kind.CUDA_METHOD]
        written(scan)
        after = path.read_bytes()
        added = re.compile(rb"\r?\nDEVICE = .*?\n(\r?\n)?", re.DOTALL)
        assert added.sub(b"", after, count=1).replace(b".to(DEVICE)", b".cuda()") == content
        assert path.stat().st_mode & 0o777 == 0o640
        assert scan_file(path).device_bound == ()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(cases)


def written(scan: FileScan) -> None:
    assert scan.fixed is not None
    write(scan, scan.fixed)
