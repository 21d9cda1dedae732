"""``flroute run``: a script's own arguments, traceback and exit code; what it needs that is not there is said in words."""

from __future__ import annotations

import atexit
import json
import logging
import os
import subprocess
import sys
import textwrap
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
import typer
from click.testing import CliRunner, Result

from flroute.cli import app

if TYPE_CHECKING:
    import click

AT_HOME = "import torch\nx = torch.ones(2).cuda()\nassert x.is_cuda\n"


def write(folder: Path, text: str, name: str = "script.py") -> str:
    path = folder / name
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return str(path)


def touched() -> tuple[object, ...]:
    """What of this process the command changes while a script runs."""
    ours = {name: value for name, value in os.environ.items() if name.startswith("FLROUTE_")}
    return sys.modules["__main__"], ours, threading.active_count()


class WithAnEnd:
    """The command line, after which what it registers with ``atexit`` is done, as at the end of a process of its own."""

    name = "flroute"

    def main(self, *args: Any, **kwargs: Any) -> None:
        with pytest.MonkeyPatch.context() as patch, ExitStack() as at_exit:
            patch.setattr(sys, "argv", sys.argv)
            patch.setattr(sys, "path", sys.path[:])
            patch.setattr(sys, "excepthook", sys.excepthook)
            patch.setattr(atexit, "register", at_exit.callback)
            typer.main.get_command(app).main(*args, **kwargs)


def run(*arguments: str) -> Result:
    """In this process: what the command changes must be gone at its end."""
    before = touched()
    result = CliRunner().invoke(cast("click.Command", WithAnEnd()), ["run", *arguments])
    assert touched() == before
    assert not torch.cuda.is_available()
    return result


def test_a_script_runs_with_its_own_arguments(tmp_path: Path) -> None:
    script = write(tmp_path, """
        import sys
        import torch
        from pathlib import Path
        import beside
        print(__name__, sys.argv[1:], Path(sys.argv[0]).name, beside.WORD)
        print(torch.ones(2).cuda().device, torch.ones(2).device)
        """)  # fmt: skip
    write(tmp_path, "WORD = 'found'", "beside.py")
    result = run("--strict", script, "--device", "x", "-m", "--report", "--help", "--", "1")
    sys.modules.pop("beside")
    assert result.exit_code == 0, result.output
    assert (
        "__main__ ['--device', 'x', '-m', '--report', '--help', '--', '1'] script.py found" in result.stdout
    )
    assert "cuda:0 cpu" in result.stdout


def test_the_report_comes_at_the_end_on_stderr(tmp_path: Path) -> None:
    result = run(write(tmp_path, AT_HOME + "print(torch.relu(x).sum().item())\n"))
    assert result.stdout == "2.0\n"
    assert "flroute run on reference:0" in result.stderr
    assert "aten::relu" in result.stderr
    assert "fallbacks: none" in result.stderr
    assert "  Tensor.cuda, 1 call, " in result.stderr


def test_routes_are_no_lines_in_a_scripts_own_log(tmp_path: Path) -> None:
    level = logging.getLogger("flroute").level
    head = "import logging\nlogging.basicConfig(level=logging.INFO, force=True)\nlogging.info('step 1')\n"
    script = write(tmp_path, head + AT_HOME)
    log = in_a_process(script).stderr.partition("flroute run on")[0]
    assert log == "INFO:root:step 1\n"
    run(write(tmp_path, AT_HOME))
    assert logging.getLogger("flroute").level == level


def test_the_report_as_json(tmp_path: Path) -> None:
    report = tmp_path / "reports" / "run.json"
    script = write(tmp_path, AT_HOME)
    result = run("--device", "reference:1", "--report", str(report), script)
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(report.read_text())
    assert found["device"] == "fl:1"
    assert found["settings"]["alias"] == ["cuda"]
    assert {"name": "Tensor.cuda", "site": f"{script}:2", "calls": 1} in found["redirected"]
    assert any(decision["op"] == "aten::_copy_from" for decision in found["decisions"])


def test_each_rank_writes_a_report_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    run("--report", str(tmp_path / "run.json"), write(tmp_path, AT_HOME))
    assert (tmp_path / "run.rank1.json").is_file()


@pytest.mark.parametrize(
    ("leaving", "code"), [("sys.exit(7)", 7), ("sys.exit()", 0), ("raise SystemExit(3)", 3), ("exit(4)", 4)]
)
def test_exit_codes_pass_through(tmp_path: Path, leaving: str, code: int) -> None:
    result = run(write(tmp_path, f"import sys\n{AT_HOME}{leaving}\n"))
    assert result.exit_code == code
    assert "flroute run on" in result.stderr


def in_a_process(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flroute", "run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=cwd)


def test_an_exit_with_a_message_prints_it(tmp_path: Path) -> None:
    done = in_a_process(write(tmp_path, f"import sys\n{AT_HOME}sys.exit('no data')\n"))
    assert done.returncode == 1
    assert "no data" in done.stderr


def test_a_scripts_error_shows_its_own_traceback(tmp_path: Path) -> None:
    script = write(tmp_path, AT_HOME + "def step(x):\n    return x @ torch.ones(3, 3, device='cuda')\ntry:\n    step(x)\nexcept RuntimeError as e:\n    raise ValueError('bad batch') from e\n")  # fmt: skip
    done = in_a_process(script)
    assert done.returncode == 1
    trace = done.stderr.partition("flroute run on")[0]
    assert trace.startswith("Traceback (most recent call last):\n")
    assert trace.rstrip().endswith("ValueError: bad batch")
    assert "The above exception was the direct cause" in trace
    frames = [line.split('"')[1] for line in trace.splitlines() if line.startswith('  File "')]
    assert {frame for frame in frames if "site-packages" not in frame} == {
        script
    }  # and PyTorch's, which raised it
    assert "runpy" not in trace
    assert "/flroute/" not in trace


def test_a_missing_package_for_cuda_is_named_with_what_to_do(tmp_path: Path) -> None:
    trace = in_a_process(write(tmp_path, "import flash_attn\n")).stderr
    assert "ModuleNotFoundError: No module named 'flash_attn'" in trace
    assert "flash_attn is a package for CUDA" in trace
    assert "scaled_dot_product_attention" in trace


def test_a_syntax_error_is_shown_as_python_shows_it(tmp_path: Path) -> None:
    script = write(tmp_path, "def broken(:\n")
    ours = in_a_process(script).stderr.partition("flroute run on")[0]
    theirs = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False).stderr
    assert ours == theirs


def test_a_script_may_have_a_hook_of_its_own_for_errors(tmp_path: Path) -> None:
    result = run(write(tmp_path, "import sys\nsys.excepthook = lambda kind, error, trace: print('hook', kind.__name__, trace.tb_lineno)\n1 / 0\n"))  # fmt: skip
    assert (result.exit_code, result.stdout) == (1, "hook ZeroDivisionError 3\n")


def test_strict_is_an_error_where_only_the_host_could_do_the_work(tmp_path: Path) -> None:
    script = write(
        tmp_path, "import torch\ntorch.hypot(torch.ones(2).to('cuda'), torch.ones(2).to('cuda'))\n"
    )
    assert run("--device", "opaque", script).exit_code == 0
    strict = in_a_process("--device", "opaque", "--strict", script)
    assert strict.returncode == 1
    assert "FallbackError: aten::hypot" in strict.stderr


def test_a_module_runs_as_python_dash_m(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "training"
    package.mkdir()
    write(package, "")
    write(package, "", "__init__.py")
    write(
        package,
        "import sys, torch\nprint(__name__, __package__, sys.argv[1:], torch.ones(1).cuda().device)\n",
        "main.py",
    )
    monkeypatch.chdir(tmp_path)
    result = run("--strict", "-m", "training.main", "--strict", "--lr", "1", "-m", "x")
    for name in ("training", "training.main"):
        sys.modules.pop(name, None)
    assert result.exit_code == 0, result.output
    assert result.stdout == "__main__ training ['--strict', '--lr', '1', '-m', 'x'] cuda:0\n"


def test_a_directory_with_a_main_runs(tmp_path: Path) -> None:
    write(tmp_path, AT_HOME + "print('main')", "__main__.py")
    assert run(str(tmp_path)).stdout == "main\n"


def test_what_cannot_be_run_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"\x00\x01\x02" * 100)
    (tmp_path / "folder").mkdir()
    write(tmp_path, "{}", "cells.ipynb")
    for arguments, words in (
        ([str(tmp_path / "absent.py")], "there is no such file"),
        ([str(tmp_path / "folder")], "is a directory without a __main__.py"),
        ([str(tmp_path / "weights.bin")], "is not a Python file: it holds binary data"),
        ([str(tmp_path / "cells.ipynb")], "is a notebook: in it, %load_ext flroute"),
        (["-m", "no_such_module"], "module no_such_module cannot be run"),
        (["-m", "no_such_package.part"], "module no_such_package.part cannot be run"),
        ([], "which script?"),
        (["--device", "nobody", write(tmp_path, AT_HOME)], "no vendor named 'nobody'"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2, arguments
        assert words in result.stderr.replace("\n", " "), arguments


def test_what_a_script_leaves_behind_comes_to_its_end_with_cuda(tmp_path: Path) -> None:
    script = write(tmp_path, """
        import atexit, sys, threading, time, torch
        from concurrent.futures import ThreadPoolExecutor
        def late(what):
            time.sleep(0.3)
            print(what, torch.ones(2, device="cuda").device, torch.cuda.is_available(), sys.argv[1:], flush=True)
        atexit.register(late, "handler")
        threading.Thread(target=late, args=("thread",)).start()
        ThreadPoolExecutor(1).submit(late, "pool")
        executor = ThreadPoolExecutor(1)  # nobody shuts it down
        executor.submit(print, "main is over")
        sys.exit(3)
        """)  # fmt: skip
    done = in_a_process(script, "--epochs", "1")
    lines = done.stdout.splitlines()
    assert done.returncode == 3, done.stderr
    assert (lines[0], lines[-1]) == ("main is over", "handler cuda:0 True ['--epochs', '1']")
    assert sorted(lines[1:-1]) == [f"{what} cuda:0 True ['--epochs', '1']" for what in ("pool", "thread")]
    assert "flroute run on" in done.stderr


@pytest.mark.slow
def test_processes_that_a_script_starts_have_the_same_cuda(tmp_path: Path) -> None:
    script = write(tmp_path, """
        import subprocess, sys
        import torch
        import torch.multiprocessing as mp
        DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        def work(rank):
            print("child", rank, DEVICE, torch.ones(2).cuda(rank).device, flush=True)
            try:
                torch.hypot(torch.ones(2, device="cuda"), torch.ones(2, device="cuda"))
            except RuntimeError as error:
                print(type(error).__name__, flush=True)
        if __name__ == "__main__":
            mp.spawn(work, nprocs=1)
            program = "import torch; print('program', torch.ones(2).cuda().device)"
            print(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout, flush=True)
        """)  # fmt: skip
    done = in_a_process("--device", "opaque:1", "--strict", script)
    assert done.returncode == 0, done.stderr
    assert "child 0 cuda cuda:0" in done.stdout
    assert "FallbackError" in done.stdout
    assert "program cuda:0" in done.stdout


def test_a_session_for_the_whole_process_that_cannot_open_says_so() -> None:
    environment = {**os.environ, "FLROUTE_SESSION": "1", "FLROUTE_DEVICE": "nobody"}
    done = subprocess.run(
        [sys.executable, "-c", "import torch"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "FLROUTE_SESSION=1 opened no session: no vendor named 'nobody'" in done.stderr


@pytest.mark.slow
def test_torchrun_starts_it(tmp_path: Path) -> None:
    script = write(tmp_path, """
        import os, torch
        import torch.distributed as dist
        rank = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        x = torch.full((2,), float(rank), device="cuda")
        dist.all_reduce(x)
        os.write(1, f"rank {dist.get_rank()} {x.device} {x.tolist()}\\n".encode())
        dist.destroy_process_group()
        """)  # fmt: skip
    report = tmp_path / "run.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "flroute", "run", "--strict", "--report", str(report), script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "rank 0 cuda:0 [1.0, 1.0]" in done.stdout
    assert "rank 1 cuda:1 [1.0, 1.0]" in done.stdout
    assert json.loads((tmp_path / "run.rank1.json").read_text())["redirected"]
