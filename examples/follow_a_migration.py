"""Follow a project from cuda to a device: every command of ``docs/migration.md``, and what it says.

Run it with ``python examples/follow_a_migration.py``; with a folder it writes ``migration.md`` there, as in ``docs``. The
project is ``examples/migration``; the commands run in a copy of it.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import torch

PROJECT = Path(__file__).resolve().parent / "migration"
WIDTH = 120

MIXUP = (
    "torch.distributions.Beta(torch.tensor(alpha).cuda(), torch.tensor(alpha).cuda()).sample()",
    "torch.distributions.Beta(alpha, alpha).sample().item()",
)
"""The one edit that a person makes: a number that is drawn once for a batch need not be drawn on the device."""


@dataclass
class Project:
    """A copy of the project, and commands that run in it.

    Args:
        folder: where the copy is made.
        environment: variables of the commands.
        trained: what the training printed when it ran as cuda code.
    """

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    trained: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        shutil.copytree(PROJECT, self.folder, ignore=shutil.ignore_patterns("__pycache__", "*.pt"))
        quiet = {"COLUMNS": str(WIDTH), "NO_COLOR": "1", "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
        self.environment = {**os.environ, **quiet}

    def shell(self, line: str, expected: int = 0) -> str:
        """The output of a command line, both streams in one.

        Args:
            line: ``flroute ...`` or ``python ...``.
            expected: its exit code.
        """
        program, *arguments = shlex.split(line)
        command = [sys.executable, *(["-m", "flroute"] if program == "flroute" else []), *arguments]
        done = subprocess.run(  # noqa: S603 -- the commands are this page's own
            command,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != expected:
            raise SystemExit(f"{line} exits with {done.returncode}, not {expected}:\n{done.stdout}")
        text = done.stdout.replace(f"{self.folder}{os.sep}", "")
        return "\n".join(part.rstrip() for part in text.strip("\n").splitlines())

    def edit(self, name: str, before: str, after: str) -> str:
        """Change a file as a person would; the change as a diff."""
        path = self.folder / name
        old = path.read_text(encoding="utf-8")
        if before not in old:
            raise SystemExit(f"{name} no longer says {before!r}")
        new = old.replace(before, after)
        path.write_text(new, encoding="utf-8")
        lines = difflib.unified_diff(old.splitlines(), new.splitlines(), name, name, n=1, lineterm="")
        return "\n".join(lines)


def block(text: str, line: str = "", language: str = "text") -> str:
    """A block of code; above what a command says, the command."""
    return f"```{language}\n{f'$ {line}' + chr(10) if line else ''}{text}\n```\n"


def shortened(text: str, first: int, *, after: str, until: str = "") -> str:
    """The first lines, and those from the one that begins with ``after`` to the one that begins with ``until``."""
    lines = text.splitlines()
    rest = next(i for i, line in enumerate(lines) if line.startswith(after))
    last = next(i for i, line in enumerate(lines) if line.startswith(until)) if until else len(lines)
    return "\n".join([*lines[:first], "...", *lines[rest : last + 1]])


def wrapped(text: str) -> str:
    """Long sentences on lines of their own; tables are narrow enough as they are."""
    return "\n".join(
        part
        for line in text.splitlines()
        for part in (textwrap.wrap(line, WIDTH) if len(line) > WIDTH else [line])
    )


def without_pytorchs_frames(traceback: str) -> str:
    """A traceback with the project's own frames and what was raised."""
    frames = re.sub(r'  File "[^"]*site-packages[^\n]*\n(?:    [^\n]*\n)+', "", traceback)
    report = frames.find("flroute run on ")
    return wrapped(frames[: report if report >= 0 else None].rstrip())


def scanned(project: Project) -> str:
    """What is bound to cuda, and what becomes of it."""
    return (
        "## Scan: what is bound to cuda\n\nNothing runs; the files are read.\n\n"
        + block(project.shell("flroute scan .", expected=1), "flroute scan .")
        + "\nEach finding is redirected when the code runs under `flroute run`, and `--fix` can rewrite each: there is no need "
        "to do either now, and no finding that a person has to look at. What would be in the way, such as an extension that is "
        "compiled for CUDA, is listed with what to do about it.\n"
    )


def checked(project: Project) -> str:
    """What the model needs of the device."""
    line = "flroute check model.py:example"
    return (
        "## Check: what the model needs\n\n`example` in `model.py` gives a model and a batch. They are followed as shapes: a model "
        "of any size takes no memory, and nothing runs.\n\n"
        + block(shortened(project.shell(line), 7, after="fl:0: "), line)
        + "\nThe vendor has a kernel for all that the model does, forward and backward. What else the training does, only a "
        "run can tell.\n"
    )


def ran(project: Project) -> str:
    """Strictly, until nothing is left to the host."""
    strict = "flroute run --strict train.py"
    stopped = without_pytorchs_frames(project.shell(strict, expected=1))
    goes_on = project.shell("flroute run train.py --epochs 1").splitlines()
    says = next(line for line in goes_on if line.startswith("  aten::_sample_dirichlet, "))
    edit = project.edit("data.py", *MIXUP)
    resumed = "flroute run --strict train.py --epochs 3 --resume checkpoint.pt"
    first, second = project.shell(strict), project.shell(resumed)
    project.trained = epochs(first)
    return (
        "## Run: as it is, and strictly\n\nInside `flroute run`, cuda is the device; `--strict` makes an error of what only the "
        "host could do.\n\n"
        + block(stopped, strict)
        + "\nThe script's own traceback (PyTorch's frames are left out here) ends at the line that asks for it: mixup draws its "
        "share on the device, and the vendor has no kernel for that. Without `--strict` the run goes on, and its report says at "
        "the end what the host did:\n\n"
        + block(wrapped(f"fallbacks:\n{says}"))
        + "\nIt is one number for each batch, and the host can as well draw it in the first place:\n\n"
        + block(edit, language="diff")
        + "\nThat is the only edit.\n\n"
        + block(without_the_table(first), strict)
        + "\n`checkpoint.pt` was written by a script that says cuda, and names the device as such. The script goes on from it, "
        '`map_location="cuda:0"` and all:\n\n' + block("\n".join(epochs(second)), resumed)
    )


def compared(project: Project) -> str:
    """Whether the numbers are the host's."""
    line = "flroute compare model.py:example"
    return (
        "## Compare: are the numbers right?\n\nThe model runs on the device and on the host, from the same weights and on the same "
        "batch; each module and each op is compared.\n\n"
        + block(shortened(project.shell(line), 9, after="fl is ", until="passed: "), line)
        + "\nThe last column is how much of its tolerance a difference takes up; the command exits with 1 if one takes more than "
        "all of it.\n"
    )


def kept(project: Project) -> str:
    """The same code for every device."""
    diff = project.shell("flroute scan --diff train.py", expected=1)
    fixed = project.shell("flroute scan --fix .").splitlines()[-1]
    line = "python train.py --epochs 1"
    after = project.shell(line)
    if not alike(after, project.trained[0]):
        raise SystemExit(f"the rewritten project says {after}, before {project.trained[0]}")
    project.environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    on_host = project.shell(line)
    del project.environment["TORCH_DEVICE_BACKEND_AUTOLOAD"]
    return (
        "## Keep: the same code everywhere\n\n`flroute run` is enough to try a device. A project that stays there may want code "
        "that names none:\n\n"
        + block("\n".join(diff.splitlines()[:28]) + "\n...", "flroute scan --diff train.py")
        + "\n"
        + block(fixed, "flroute scan --fix .")
        + "\nNow Python itself runs it on the device, where flroute is installed, and the numbers are those of `flroute run` up to "
        "rounding:\n\n"
        + block(after, line)
        + "\nWhere flroute is not installed, the host computes; in bfloat16, for that is what `torch.autocast` takes there:\n\n"
        + block(on_host, line)
    )


def alike(one: str, other: str) -> bool:
    """Whether two lines say the same, with numbers up to rounding."""
    numbers = [[float(number) for number in re.findall(r"\d+\.\d+", line)] for line in (one, other)]
    return all(abs(a - b) < 0.002 for a, b in zip(*numbers, strict=True))


def bridged(project: Project) -> str:
    """The module that a project keeps."""
    line = "flroute bridge --write device.py"
    return (
        "## A module of one's own\n\nCode that a person writes can ask one small module, which the project owns and which needs no "
        "flroute:\n\n"
        + block(project.shell(line), line)
        + "\n"
        + block(
            "from device import autocast, load_model, resolve_device, to_device\n\n"
            'model = load_model("checkpoint.pt", ViT())\n'
            "for batch in loader:\n"
            "    images, labels = to_device(batch)\n"
            "    with autocast():\n"
            "        logits = model(images)",
            language="python",
        )
        + '\nTo keep what was won, set `fallback = "error"` in the project\'s `[tool.flroute]`, and run its tests with '
        "`pytest --flroute-device=reference --flroute-fallback=error`.\n"
    )


def epochs(output: str) -> list[str]:
    """What the training itself printed."""
    return [line for line in output.splitlines() if line.startswith("epoch ")]


def without_the_table(output: str) -> str:
    """What the training printed, and the end of flroute's report."""
    lines = output.splitlines()
    summary = next(i for i, line in enumerate(lines) if line.startswith("device fl:0: "))
    return "\n".join([*epochs(output), "", "flroute run on reference:0", "...", *lines[summary:]])


def page() -> str:
    """The whole way, as Markdown."""
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder).resolve() / "migration")
        parts = (scanned, checked, ran, compared, kept, bridged)
        about = (
            "# From cuda to a device\n\nMade by `python examples/follow_a_migration.py docs` with PyTorch "
            f"{torch.__version__.partition('+')[0]}: each command ran, and this is what it said.\n\n"
            "[The project](../examples/migration) trains a small vision transformer on handwritten digits, and was written for "
            'cuda: `.cuda()`, `torch.cuda.amp`, `device="cuda"`, `map_location="cuda:0"`. It has three files: '
            "`data.py` with loaders and mixup, `model.py`, and `train.py`, which saves a checkpoint after each epoch.\n\n"
        )
        return about + "\n".join(part(project) for part in parts)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        (Path(sys.argv[1]) / "migration.md").write_text(page(), encoding="utf-8")
    else:
        print(page())
