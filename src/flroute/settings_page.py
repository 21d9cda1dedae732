"""The page about settings, made from the one table of them: ``python -m flroute.settings_page > docs/settings.md``."""

from __future__ import annotations

import json

from flroute.settings import CHANGEABLE, SETTINGS, Setting, Settings

_HEAD = """# Settings

This page is generated: `python -m flroute.settings_page > docs/settings.md`.

A setting is an argument of `flroute.enable`, a key in `flroute.toml` or in `[tool.flroute]` of pyproject.toml, and an
environment variable. Arguments win over variables, these over `flroute.toml`, that over pyproject.toml; of files, those in the
nearest directory upward count. `order` and `rules` of all sources add up, what wins comes first. What is wrong is an error that
names file and line; `flroute config` shows what is in force and where it comes from.

| setting | variable | values | default | meaning |
|---|---|---|---|---|
"""

_RULES = """
## Rules

```toml
order = {"aten::mm" = ["triton", "numpy", "host"], "aten::_foreach_*" = ["numpy"]}
deny = ["acme/experimental:*"]

[[rules]]                      # the first rule that holds for a call decides; plain orders come after all rules
op = "aten::*_backward"        # an overload (aten::add.Tensor, aten::mean.default), an op (aten::add: all of it), or a glob
order = ["numpy", "host"]      # vendors, implementations, kernels, or globs; `host` is PyTorch's own; others are rejected
dtype = ["bfloat16"]           # a tensor that is read has one of these
min_numel = 4096               # elements of the largest tensor that is read; max_numel likewise
module = "encoder.layer.*"     # path of the module that calls, as in decisions
phase = ["forward"]            # forward, backward or optimizer
```

A rule about `dtype` costs nothing per call. One about size is asked on each call of its ops, one about module or phase looks at
the stack each time, and both keep these ops off the hot path. `flroute config --check` finds rules without effect: unknown ops,
targets that are not there, rules that others shadow or contradict, with file and line; it exits with 1 if there are any.

`precision` admits kernels by what they declare: `highest` those that keep the accuracy of the input type, `high` also those that
may multiply or accumulate in less, `medium` also those that do less still. What is left out is in the decision, with the reason.
"""


def to_markdown() -> str:
    """The page."""
    rows = "".join(f"| {' | '.join(_row(setting))} |\n" for setting in SETTINGS.values())
    changeable = ", ".join(f"`{name}`" for name in CHANGEABLE)
    process = ", ".join(f"`{s.name}`" for s in SETTINGS.values() if not s.in_arguments)
    notes = (
        f"\n`session.change(...)` changes {changeable} while a session is open. {process} hold for the whole process and are no "
        "arguments.\n"
    )
    return _HEAD + rows + notes + _RULES


def _row(setting: Setting) -> tuple[str, ...]:
    default = getattr(Settings(), setting.name)
    shown = "" if default is None or default in ({}, ()) else f"`{json.dumps(default)}`"
    allowed = setting.allowed.replace("|", "\\|")
    return f"`{setting.name}`", f"`{setting.variable}`", allowed, shown.replace('"', ""), setting.description


if __name__ == "__main__":
    print(to_markdown(), end="")  # noqa: T201 -- the page is what it is run for
