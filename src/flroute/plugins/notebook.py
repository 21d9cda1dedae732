"""``%load_ext flroute``: cells that run in a session, and tensors on the device as HTML.

The only module that imports IPython. What it adds to a shell is taken out again by ``%unload_ext flroute``; PyTorch's own
classes stay as they are.
"""

from __future__ import annotations

import ast
from argparse import ArgumentTypeError
from collections.abc import Callable
from contextlib import ExitStack
from keyword import iskeyword
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import no_var_expand
from IPython.core.magic_arguments import MagicArgumentParser
from IPython.display import display

from flroute.device import table
from flroute.device.tensors import is_on_device
from flroute.errors import FlrouteError
from flroute.groups import GROUPINGS
from flroute.report import ORDERS
from flroute.session import Session, enable
from flroute.tables import html_lines, html_part, html_text
from flroute.vocabulary import FallbackPolicy, Precision

_loaded: WeakKeyDictionary[InteractiveShell, ExitStack] = WeakKeyDictionary()
"""For each shell with the extension, what undoes it."""


def load(shell: InteractiveShell) -> None:
    """Add the magic and the formatter to a shell; does nothing if it has them."""
    if shell in _loaded:
        return
    with ExitStack() as undo:
        _add_magic(shell, undo)
        _add_formatter(shell, undo)
        _loaded[shell] = undo.pop_all()


def unload(shell: InteractiveShell) -> None:
    """Leave the shell as it was before ``load``; sessions stay open."""
    undo = _loaded.pop(shell, None)
    if undo is not None:
        undo.close()


# The cell magic -----------------------------------------------------------------------------------------------------


def _add_magic(shell: InteractiveShell, undo: ExitStack) -> None:
    magics = shell.magics_manager.magics["cell"]
    before = magics.get("flroute")
    magic: Any = _magic_of(shell)  # IPython's annotation of what it takes is wrong
    shell.register_magic_function(magic, "cell", "flroute")
    undo.callback(_put_back, magics, "flroute", before)


def _put_back(mapping: dict[Any, Any], key: Any, before: Any) -> None:
    if before is None:
        mapping.pop(key, None)
    else:
        mapping[key] = before


def _parser() -> MagicArgumentParser:
    # The class puts a % of its own before the name.
    parser = MagicArgumentParser("%flroute", description="Run the cell in a session, and show its report.")
    add = parser.add_argument
    add(
        "device",
        nargs="?",
        help="vendor or device, as for flroute.enable(); the default vendor's first if absent",
    )
    add("--fallback", choices=_words(FallbackPolicy), help="when only the host can do the work")
    add("--precision", choices=_words(Precision), help="kernels admitted")
    add("--time", dest="timing", action="store_true", default=None, help="measure the time of every call")
    add("--modules", action="store_true", default=None, help="count every call for its module and phase")
    add("--debug", action="store_true", default=None, help="check every result of every kernel")
    add("--sort", choices=list(ORDERS), help="sort the report")
    add("--group", choices=list(GROUPINGS), help="show what calls add up to, in place of the report")
    add("--session", metavar="NAME", type=_variable, help="keep the session, as a variable of the notebook")
    return parser


def _words(kind: type[FallbackPolicy | Precision]) -> list[str]:
    return [str(word) for word in kind]


def _variable(name: str) -> str:
    if not name.isidentifier() or iskeyword(name):
        raise ArgumentTypeError(f"{name!r} is no name for a variable")
    return name


def _magic_of(shell: InteractiveShell) -> Callable[[str, str], None]:
    parser = _parser()

    @no_var_expand
    def flroute(line: str, cell: str) -> None:
        __tracebackhide__ = True  # IPython then shows the cell's own frames
        asked = _parsed(parser, line)
        name, sort, group = (asked.pop(word) for word in ("session", "sort", "group"))
        codes = _compiled(shell, cell)
        session = _made(asked)
        if name is not None:
            shell.user_ns[name] = session
        try:
            with session:
                _run(shell, codes)
        finally:  # what the cell did before it raised is in the report, and its error comes below that
            report = session.report() if sort is None else session.report().sorted_by(sort)
            display(report if group is None else report.grouped_by(group))

    flroute.__doc__ = parser.format_help()
    return flroute


def _parsed(parser: MagicArgumentParser, line: str) -> dict[str, Any]:
    try:
        return dict(vars(parser.parse_argstring(line)))
    except (UsageError, ValueError) as error:  # a ValueError where a quote is not closed
        usage = " ".join(parser.format_usage().removeprefix("::").split())
        raise UsageError(f"{error}. What is allowed: {usage}") from None


def _made(settings: dict[str, Any]) -> Session:
    """The session; what is wrong with its settings is the magic line's fault, and no traceback says more."""
    try:
        return enable(**settings)
    except FlrouteError as error:
        raise UsageError(f"%%flroute: {error}") from error


def _compiled(shell: InteractiveShell, cell: str) -> list[CodeType]:
    """The cell's statements, and its last expression apart: IPython shows what that yields, as in any cell."""
    source = shell.transform_cell(cell)
    name = shell.compile.cache(source, shell.execution_count, raw_code=cell)
    statements = shell.transform_ast(shell.compile.ast_parse(source, filename=name)).body
    shown = statements[-1:] if statements and isinstance(statements[-1], ast.Expr) else []
    body = statements[: len(statements) - len(shown)]
    compiled: Any = shell.compile  # takes trees, too, whatever its annotation says
    codes = [compiled(ast.Module(body, type_ignores=[]), name, "exec")]
    return codes + [compiled(ast.Interactive(shown), name, "single") for _ in shown[:1]]


def _run(shell: InteractiveShell, codes: list[CodeType]) -> None:
    __tracebackhide__ = True
    for code in codes:
        exec(code, shell.user_global_ns, shell.user_ns)  # noqa: S102 -- the user's own cell


# Tensors -----------------------------------------------------------------------------------------------------------


def _add_formatter(shell: InteractiveShell, undo: ExitStack) -> None:
    """IPython asks a formatter by type before it asks an object: ``torch.Tensor`` needs no method of ours."""
    formatters: Any = shell.display_formatter
    formatter = formatters.formatters["text/html"]
    before = formatter.type_printers.get(torch.Tensor)

    def shown(tensor: torch.Tensor) -> str | None:
        if is_on_device(tensor):
            return tensor_html(tensor)
        return before(tensor) if before is not None else None

    formatter.for_type(torch.Tensor, shown)
    undo.callback(_put_back, formatter.type_printers, torch.Tensor, before)


def tensor_html(tensor: torch.Tensor) -> str:
    """A tensor on the device: what and where it is, and its elements as PyTorch prints them (from a copy on the host)."""
    device = table.device_at(tensor.device.index)
    dtype = str(tensor.dtype).removeprefix("torch.")
    facts = f"{dtype} {list(tensor.shape)} on {device.name} ({device.vendor_device})"
    return html_part(html_lines([facts]), html_text(repr(tensor)))
