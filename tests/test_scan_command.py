"""The command ``flroute scan``: what it prints, its exit codes, and what it does with files that are no good."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from flroute.cli import app
from flroute.scan.files import find_files, scan_file
from flroute.scan.findings import Kind, Verdict
from flroute.scan.scanning import scan_paths

runner = CliRunner()

BOUND = 'import torch\nmodel = torch.nn.Linear(2, 2).cuda()\nif torch.cuda.is_available():\n    torch.load("a", map_location="cuda:0")\n'
NEUTRAL = "import torch\nx = torch.ones(2).cpu()\n"


def scan(*arguments: object) -> tuple[int, str]:
    done = runner.invoke(app, ["scan", *map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def put(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


def test_exit_codes(tmp_path: Path) -> None:
    put(tmp_path, good=NEUTRAL)
    assert scan(tmp_path)[0] == 0
    put(tmp_path, bound=BOUND)
    assert scan(tmp_path)[0] == 1
    put(tmp_path, broken="def cuda(:\n")
    assert scan(tmp_path)[0] == 2
    assert scan()[0] == 2


def test_the_table_names_files_lines_edits_and_the_verdict(tmp_path: Path) -> None:
    put(tmp_path, bound=BOUND, graph="import torch\ng = torch.cuda.CUDAGraph()\n", good=NEUTRAL)
    code, shown = scan(tmp_path)
    assert code == 1
    for words in ("bound.py runs as is under flroute run", "graph.py is blocked by torch.cuda.CUDAGraph", "cuda-method", "map-location"):  # fmt: skip
        assert words in shown
    assert "3 files: 3 --fix, 1 blocked, 1 need nothing (--all shows them)" in shown
    assert "host-copy" not in shown
    assert "host-copy" in scan(tmp_path, "--all")[1]


def test_diff_shows_and_fix_writes(tmp_path: Path) -> None:
    path = put(tmp_path, bound=BOUND) / "bound.py"
    code, shown = scan(path, "--diff")
    assert code == 1
    assert "-model = torch.nn.Linear(2, 2).cuda()" in shown
    assert "+model = torch.nn.Linear(2, 2).to(DEVICE)" in shown
    assert path.read_text(encoding="utf-8") == BOUND
    assert scan(path, "--fix")[0] == 0
    edited = path.read_text(encoding="utf-8")
    assert "torch.nn.Linear(2, 2).to(DEVICE)" in edited
    assert scan(path, "--fix")[0] == 0
    assert path.read_text(encoding="utf-8") == edited
    assert scan(path, "--diff")[1] == ""


def test_json(tmp_path: Path) -> None:
    put(tmp_path, bound=BOUND)
    code, shown = scan(tmp_path, "--format", "json")
    found = json.loads(shown)
    assert code == 1
    assert (found["verdict"], found["looked_at"], found["needs"]["--fix"]) == ("runs", 1, 3)
    assert {(f["line"], f["kind"]) for f in found["files"][0]["findings"]} == {
        (2, "cuda-method"),
        (3, "cuda-api"),
        (4, "map-location"),
    }


SARIF = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "required": ["tool"],
                "properties": {
                    "tool": {
                        "required": ["driver"],
                        "properties": {"driver": {"required": ["name"], "properties": {"rules": {"items": {"required": ["id"]}, "uniqueItems": True}}}},
                    },
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "results": {
                        "items": {
                            "required": ["message"],
                            "properties": {
                                "message": {"required": ["text"]},
                                "level": {"enum": ["none", "note", "warning", "error"]},
                                "ruleIndex": {"type": "integer", "minimum": 0},
                                "locations": {
                                    "items": {
                                        "properties": {
                                            "physicalLocation": {
                                                "properties": {
                                                    "artifactLocation": {"required": ["uri"]},
                                                    "region": {
                                                        "properties": {
                                                            "startLine": {"type": "integer", "minimum": 1},
                                                            "startColumn": {"type": "integer", "minimum": 1},
                                                        }
                                                    },
                                                }
                                            }
                                        }
                                    }
                                },
                            },
                        }
                    },
                },
            },
        },
    },
}  # fmt: skip
"""What SARIF 2.1.0 requires of the parts that a scan writes."""


def test_sarif(tmp_path: Path) -> None:
    put(tmp_path, bound=BOUND, good=NEUTRAL, broken="def cuda(:\n")
    code, shown = scan(tmp_path, "--format", "sarif")
    assert code == 2
    log: dict[str, Any] = json.loads(shown)
    jsonschema.validate(log, SARIF)
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert rules == [kind.value for kind in Kind]
    assert len(run["results"]) == 5
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in run["results"])
    assert {result["level"] for result in run["results"]} == {"note", "warning", "error"}


def test_a_missing_path_is_an_error_in_words(tmp_path: Path) -> None:
    code, shown = scan(tmp_path / "nowhere")
    assert code == 2
    assert "nowhere does not exist: name a file or a folder" in shown.replace("\n", "")


def test_an_empty_folder_has_nothing_to_do(tmp_path: Path) -> None:
    code, shown = scan(tmp_path)
    assert code == 0
    assert "0 files. The code is device-neutral." in shown


@pytest.mark.parametrize(
    ("content", "line", "why"),
    [
        (b"import torch\ndef f(:\n    cuda\n", 2, "Python cannot parse it"),
        (b"print 'cuda'\n", 1, "Python cannot parse it"),
        (b"import torch\nx = '\xff\xfe cuda'\n", 2, "it is no text in utf-8"),
        (b"# -*- coding: klingon -*-\n'cuda'\n", 1, "Python cannot parse it: unknown encoding"),
        (b"x = 'cuda\x00'\n", 1, "null bytes"),
        (b"x = " + b"(" * 500 + b"'cuda'" + b")" * 500 + b"\n", 1, "nested"),
    ],
    ids=["syntax", "python 2", "not utf-8", "unknown encoding", "null byte", "deeply nested"],
)
def test_a_file_that_cannot_be_read_is_a_finding(tmp_path: Path, content: bytes, line: int, why: str) -> None:
    path = tmp_path / "bad.py"
    path.write_bytes(content)
    put(tmp_path, bound=BOUND)
    (finding,) = scan_file(path).findings
    assert (finding.kind, finding.line) == (Kind.UNREADABLE, line)
    assert why in finding.advice
    code, shown = scan(tmp_path, "--fix")
    assert code == 2
    assert "bad.py cannot be read" in shown
    assert path.read_bytes() == content
    assert ".to(DEVICE)" in (tmp_path / "bound.py").read_text(encoding="utf-8")  # the others are rewritten


def test_a_file_without_permission_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, secret=BOUND) / "secret.py"
    path.chmod(0)
    if os.access(path, os.R_OK):  # root reads everything

        def refuse(self: Path) -> bytes:
            raise PermissionError(13, "Permission denied", str(self))

        monkeypatch.setattr(Path, "read_bytes", refuse)
    (finding,) = scan_file(path).findings
    assert (finding.kind, finding.advice) == (Kind.UNREADABLE, "it cannot be read: Permission denied")


def test_a_file_that_cannot_be_written_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path, bound=BOUND) / "bound.py"

    def refuse(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    code, shown = scan(path, "--fix")
    assert code == 2
    assert "cannot be rewritten: No space left on device; it is as it was" in shown.replace("\n", "")
    assert path.read_text(encoding="utf-8") == BOUND
    assert list(tmp_path.iterdir()) == [path]


def test_links_are_not_followed_round_and_round(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    put(inner, bound=BOUND)
    (inner / "up").symlink_to(tmp_path, target_is_directory=True)
    (inner / "self.py").symlink_to(inner / "self.py")
    (tmp_path / "again.py").symlink_to(inner / "bound.py")
    assert find_files([tmp_path]) == [inner / "bound.py"]
    assert scan(tmp_path)[0] == 1
    code, shown = scan(inner / "self.py")
    assert code == 2
    assert "is a link that leads nowhere" in shown.replace("\n", " ")
    assert find_files([tmp_path / "again.py"]) == [tmp_path / "again.py"]


def test_a_link_that_is_named_is_rewritten_where_it_leads(tmp_path: Path) -> None:
    real = put(tmp_path, real=BOUND) / "real.py"
    link = tmp_path / "link.py"
    link.symlink_to(real)
    assert scan(link, "--fix")[0] == 0
    assert link.is_symlink()
    assert ".to(DEVICE)" in real.read_text(encoding="utf-8")


def test_folders_that_nobody_edits_are_left_out(tmp_path: Path) -> None:
    for folder in ("__pycache__", ".git", "node_modules", "venv", "src"):
        (tmp_path / folder).mkdir()
        put(tmp_path / folder, bound=BOUND)
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    assert find_files([tmp_path]) == [tmp_path / "src" / "bound.py"]


def test_a_notebook_is_scanned_cell_by_cell(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ['Runs on "cuda".']},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "import torch\n", "!nvidia-smi"]},
        {"cell_type": "code", "source": "%%bash\necho device=cuda"},
        {"cell_type": "code", "source": "x = torch.ones(2)\nx = x.cuda()"},
    ]
    path = tmp_path / "train.ipynb"
    text = json.dumps({"cells": cells, "nbformat": 4, "nbformat_minor": 5, "metadata": {}})
    path.write_text(text, encoding="utf-8")
    (finding,) = scan_file(path).findings
    assert (finding.cell, finding.line, finding.place) == (4, 2, "cell 4, line 2")
    assert scan(path, "--fix")[0] == 1
    assert path.read_text(encoding="utf-8") == text
    path.write_text('{"cuda": ', encoding="utf-8")
    assert scan_file(path).verdict is Verdict.UNREADABLE


def test_ten_thousand_files(tmp_path: Path) -> None:
    for number in range(100):
        package = tmp_path / f"package_{number}"
        package.mkdir()
        body = "".join(f"def function_{i}(x):\n    return x + {i}\n\n\n" for i in range(10))
        put(package, **{f"module_{i}": f"import torch\n\n\n{body}" for i in range(100)})
        put(package, module_0=f"import torch\n\n\n{body}{BOUND}")
    seen = []
    found = scan_paths([tmp_path], follow=lambda files, scans: (seen.append(len(files)), scans)[1])
    assert (found.looked_at, len(found.files), seen) == (10_000, 100, [10_000])
    assert {len(file.findings) for file in found.files} == {3}
    assert [file.path for file in found.files] == sorted(file.path for file in found.files)


def test_a_terminal_is_shown_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, good=NEUTRAL)
    assert "scanning" not in scan(tmp_path)[1]
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, shown = scan(tmp_path)
    assert code == 0
    assert "scanning" in shown
    assert "1/1" in shown


def test_without_libcst_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "libcst", None)
    code, shown = scan(tmp_path)
    assert code == 2
    assert "pip install 'flroute[scan]'" in shown
