"""The page about ``flroute scan``, made from the kinds of findings: ``python -m flroute.scan.page > docs/scan.md``."""

from __future__ import annotations

from collections.abc import Iterable

from flroute.scan.cuda_names import ACCELERATOR, CHOOSING, ENVIRONMENT, LIBRARIES
from flroute.scan.findings import KINDS
from flroute.scan.headers import DEFINITION

_HEAD = f"""# flroute scan

This page is generated: `python -m flroute.scan.page > docs/scan.md`.

`flroute scan PATH...` finds what in Python files and notebooks is bound to cuda, and says for each line what it takes to make it
run on any device. It reads code with libcst (`pip install 'flroute[scan]'`) and runs none of it.

```
flroute scan src                    each file with its lines, the edits by kind, and the verdict
flroute scan src --all              with what needs no edit
flroute scan src --diff             what --fix would change
flroute scan src --fix              rewrite the files; what it cannot rewrite stays listed
flroute scan src --device acme      with functions that the vendor has no kernel for
flroute scan src --format sarif     SARIF 2.1.0 for code hosts and editors; json for programs
```

The exit code is 0 if nothing is to be done, 1 if a line needs an edit, and 2 if a file cannot be read or a path is not there.

## The verdict

Of a file, and of all files the worst:

- **is device-neutral**: nothing is to be done.
- **runs as is under flroute run**: `flroute run` redirects every device-bound line; nothing has to be edited to run it, and `--fix`
  makes it run without.
- **needs the listed edits**: some line is not redirected.
- **is blocked** by what is named: it has to be replaced, by no edit of a line.
- **cannot be read**: a syntax error, bytes that are no text.

What is redirected is not a list of the scan's own: it is the table that `flroute run` itself works by.

## What --fix writes

Code that needs nothing but PyTorch: `torch.accelerator`, `torch.amp`, `torch.get_device_module()`. A rewritten file defines its
device once, below its imports,

```python
DEVICE = {DEFINITION.format(torch="torch")}
```

and runs on cuda, on `fl`, and on a host without either. `DEVICE` is called `ACCELERATOR` where the name is taken. Everything else
of the file stays as it was, comments, quotes and the ends of lines included; imports that nothing uses any more go. A second
`--fix` changes nothing. Notebooks are scanned; their cells are edited by hand. A file is replaced as a whole or not at all.

Where meanings differ, `--fix` is careful:

- `"cuda"` in a dict's key, a message, a docstring, a comment or a name is no device, and neither is it in a call that says
  nothing of devices.
- `device.type == "cuda"` becomes `device.type != "cpu"`, which is true on every accelerator and false on the host, as it was.
  Where an `elif` goes on to ask about `"mps"` or another accelerator, it is left to a person.
- `torch.cuda.manual_seed_all(seed)` becomes `torch.manual_seed(seed)` only where the file gives that seed to it anyway.
- `map_location={{"cuda:0": "cpu"}}` gets the device's place beside cuda's: files that were written on cuda go on naming it.
- On a host without accelerator, `torch.autocast(DEVICE.type)` computes in bfloat16, where `torch.cuda.amp.autocast()` did nothing.
- `map_location="cuda:0"` becomes `map_location=DEVICE`: `torch.load` knows no `"cpu:0"`.
- What asked for cuda outright asks for an accelerator outright: statistics of memory, `.cuda(0)` and `"cuda:1"` fail on a host
  without one before and after.

## Kinds

| kind | looks like | device-neutral |
|---|---|---|
"""

_TABLES = """
## Names of torch.cuda

These have a namesake in `torch.accelerator`. Others become names of `torch.get_device_module()`, which is `torch.cuda` on cuda and
`torch.fl` on `fl` and `torch.cpu` on a bare host; what `torch.fl` has not is in [torch_fl.md](torch_fl.md), with the reason.

| torch.cuda | torch.accelerator |
|---|---|
"""

_LIBRARIES = """
## Libraries

An import of these blocks a file, unless it stands in a `try` that catches its failure, or after a question whether it is available.

| library | instead |
|---|---|
"""

_CHOOSING = """
These choose their device themselves, among those they know.

| call | how it is told |
|---|---|
"""


def to_markdown() -> str:
    """The page."""
    kinds = _rows((f"`{kind.value}`", facts.looks_like, facts.edit) for kind, facts in KINDS.items())
    names = _rows((f"`{name}`", f"`{there}`") for name, there in ACCELERATOR.items())
    libraries = _rows((f"`{name}`", instead) for name, instead in LIBRARIES.items())
    choosing = _rows((f"`{name}`", told) for name, told in CHOOSING.items())
    variables = ", ".join(f"`{pattern}`" for pattern in ENVIRONMENT)
    said = f"\nVariables of the environment that are found: {variables}.\n"
    return f"{_HEAD}{kinds}{said}{_TABLES}{names}{_LIBRARIES}{libraries}{_CHOOSING}{choosing}"


def _rows(rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in rows)


if __name__ == "__main__":
    print(to_markdown(), end="")  # noqa: T201 -- the page is what it is run for
