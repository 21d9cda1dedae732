"""What a notebook shows, the cell magic, and the notebook among the examples, run and looked at in a browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import CapturedIO, capture_output
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter
from traitlets.config import Config

import flroute
from flroute import Decision, Reason, Rejection, Route
from flroute.plugins import notebook
from flroute.report import Report
from flroute.tables import HUES

NOTEBOOK = Path(__file__).parent.parent / "examples" / "notebooks" / "first_steps.ipynb"


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    """A shell of its own, which keeps no history."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    InteractiveShell.clear_instance()
    made = InteractiveShell.instance(
        config=Config({"HistoryManager": {"enabled": False}, "InteractiveShell": {"colors": "nocolor"}})
    )
    made.user_ns.update(torch=torch, flroute=flroute)
    yield made
    notebook.unload(made)
    InteractiveShell.clear_instance()


@pytest.fixture
def loaded(shell: InteractiveShell) -> InteractiveShell:
    shell.run_line_magic("load_ext", "flroute")
    return shell


def run(shell: InteractiveShell, cell: str) -> tuple[Any, CapturedIO]:
    """A cell's result, and what it printed and displayed."""
    with capture_output() as captured:
        result = shell.run_cell(cell)
    return result, captured


def reports(captured: CapturedIO) -> list[str]:
    return [
        output.data["text/html"]
        for output in captured.outputs
        if "flroute" in output.data.get("text/html", "")
    ]


def html_of(shell: InteractiveShell, value: object) -> str | None:
    data, _ = shell.display_formatter.format(value)
    found: str | None = data.get("text/html")
    return found


# -- what things look like -------------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """Checks that tags close in order; keeps the tags, and the text outside of styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in {"br", "meta"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data


MARKUP = "<script>alert('x')</script> & \"quotes\""
DECISION = Decision(
    "aten::erf", Route.FALLBACK, None, "fl:0", Reason.PREDICATE, MARKUP, (Rejection(MARKUP, Reason.LAYOUT, MARKUP),),
    ("float32", "int64"), ((2, 3), (4,)), 1200, 0.25, 24, 0, MARKUP, MARKUP,
)  # fmt: skip


def test_a_decision_says_all_that_is_known_of_it() -> None:
    shown = Reader(DECISION._repr_html_())
    for what in (
        "aten::erf",
        "fallback",
        "fl:0",
        "predicate",
        "float32 [2, 3], int64 [4]",
        "1,200",
        "250.00 ms",
        "24",
        "forward",
    ):
        assert what in shown.text
    assert "bytes to the device" not in shown.text, "there are none"


def test_a_device_says_what_it_is_and_what_is_in_use() -> None:
    x = torch.ones(1000).to("fl:1")
    shown = Reader(flroute.devices()[1]._repr_html_()).text
    assert "fl:1" in shown
    assert "reference:1" in shown
    assert int(re.search(r"([\d,]+) of [\d,]+ bytes in use", shown)[1].replace(",", "")) >= x.nbytes  # type: ignore[index]


def test_a_session_says_whether_it_is_open_and_what_it_did() -> None:
    session = flroute.enable("reference", fallback="error")
    assert "closed, fallback=error" in Reader(session._repr_html_()).text
    with session:
        torch.relu(torch.ones(2))
        assert repr(session) == "<flroute session on fl:0 (reference:0), open, fallback=error>"
        shown = Reader(session._repr_html_()).text
    assert "fl:0 (reference:0), open" in shown
    assert "reference/numpy:relu" in shown
    assert "native share: 100.0%" in shown


@pytest.mark.parametrize(
    "make",
    [
        lambda: DECISION,
        lambda: flroute.devices()[0],
        lambda: flroute.enable("reference"),
        lambda: Report([DECISION], device=MARKUP),
        lambda: Report([DECISION], device=MARKUP).grouped_by("module"),
    ],
    ids=["decision", "device", "session", "report", "groups"],
)
def test_what_is_shown_is_escaped_and_well_formed(make: Callable[[], Any]) -> None:
    page = make()._repr_html_()
    assert set(Reader(page).tags) <= {"div", "style", "table", "thead", "tbody", "tr", "th", "td", "p", "br"}
    assert "<script" not in page


def test_text_has_the_colour_of_whatever_it_is_shown_in() -> None:
    """Light and dark are the notebook's or the page's business; hues are in bars that show on both."""
    style = re.search(r"<style>(.*?)</style>", DECISION._repr_html_())[1]  # type: ignore[index]
    colours = re.findall(r"(?<![-\w])(?:color|background(?:-color)?):([^;}]+)", style)
    assert set(colours) == {"inherit", "none"}
    assert set(re.findall(r"#\w+", style)) == set(HUES.values())
    for hue in HUES.values():
        for ground in ("#ffffff", "#000000"):
            assert contrast(hue, ground) >= 3, "what WCAG 2 asks of graphics"


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


# -- the extension -----------------------------------------------------------------------------------------------------


def test_nothing_changes_before_the_extension_is_loaded_and_after_it_is_unloaded(
    shell: InteractiveShell,
) -> None:
    def state() -> tuple[Any, ...]:
        formatter = shell.display_formatter.formatters["text/html"]
        return (
            dict(formatter.type_printers),
            dict(shell.magics_manager.magics["cell"]),
            "_repr_html_" in vars(torch.Tensor),
        )

    x, before = torch.ones(2).to("fl"), state()
    assert html_of(shell, x) is None
    for _ in range(2):
        shell.run_line_magic("load_ext", "flroute")
        notebook.load(shell)  # once more does nothing
        assert html_of(shell, x) is not None
        assert not hasattr(torch.Tensor, "_repr_html_")
        shell.run_line_magic("unload_ext", "flroute")
        assert state() == before


def test_a_magic_and_a_formatter_that_were_there_come_back(shell: InteractiveShell) -> None:
    formatter = shell.display_formatter.formatters["text/html"]
    formatter.for_type(torch.Tensor, lambda tensor: "another's")
    shell.register_magic_function(lambda line, cell: "another's", "cell", "flroute")
    shell.run_line_magic("load_ext", "flroute")
    assert "on fl:0" in str(html_of(shell, torch.ones(2).to("fl")))
    assert html_of(shell, torch.ones(2)) == "another's"
    shell.run_line_magic("unload_ext", "flroute")
    assert html_of(shell, torch.ones(2).to("fl")) == "another's"
    assert shell.run_cell_magic("flroute", "", "1") == "another's"


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(6.0).reshape(2, 3),
        lambda: torch.ones(2, requires_grad=True) * 2,
        lambda: torch.nn.Parameter(torch.ones(2)),
        lambda: torch.ones(0, 3),
        lambda: torch.tensor(float("nan")),
        lambda: torch.ones(2, dtype=torch.complex64).conj(),
        lambda: torch.ones(300, 300, dtype=torch.bfloat16).t(),
        lambda: torch.tensor([True, False]),
    ],
)
def test_a_tensor_on_the_device_is_shown_with_its_elements_and_without_a_fallback(
    make: Callable[[], torch.Tensor], loaded: InteractiveShell
) -> None:
    with flroute.enable("reference", fallback="error", watch_kernels=True) as session:
        tensor = make()
        shown = html_of(loaded, tensor)
    assert session.fallbacks == []
    assert shown is not None
    text = Reader(shown).text
    assert f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} on fl:0 (reference:0)" in text
    assert repr(tensor) in text
    assert html_of(loaded, tensor.cpu()) is None


# -- the magic -------------------------------------------------------------------------------------------------------------


def test_a_cell_runs_in_a_session_and_its_report_is_shown(loaded: InteractiveShell) -> None:
    result, shown = run(
        loaded,
        "%%flroute reference --fallback error --time --session kept\nx = torch.ones(3)\ny = x.exp()\ny.device",
    )
    assert result.success
    assert result.result == torch.device("fl:0")
    (report,) = reports(shown)
    assert "reference/numpy:exp" in report
    session = loaded.user_ns["kept"]
    assert session.settings.fallback == "error"
    assert session.settings.timing
    assert torch.ones(1).device.type == "cpu", "the session is closed"
    assert loaded.user_ns["y"].device == torch.device("fl:0")


def test_a_cell_that_raises_shows_report_and_its_own_traceback(loaded: InteractiveShell) -> None:
    result, shown = run(loaded, "%%flroute\ny = torch.ones(3).exp()\n\n1 / 0\ny = None")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert len(reports(shown)) == 1
    assert "----> 4 1 / 0" in shown.stdout or "----> 3 1 / 0" in shown.stdout
    assert "exec(code" not in shown.stdout
    assert torch.ones(1).device.type == "cpu"


def test_a_fallback_in_a_cell_is_an_error_there(loaded: InteractiveShell) -> None:
    result, shown = run(loaded, "%%flroute --fallback error\ntorch.zeros(3).erfinv()")
    assert isinstance(result.error_in_exec, flroute.FallbackError)
    assert "aten::zeros" in reports(shown)[0] or "aten::zero" in reports(shown)[0]


def test_what_is_shown_can_be_sorted_and_grouped(loaded: InteractiveShell) -> None:
    cell = "\nx = torch.ones(3)\nfor _ in range(3): x = x.exp()\nx.sin();"
    (by_calls,) = reports(run(loaded, "%%flroute --sort calls" + cell)[1])
    assert by_calls.index("aten::exp") < by_calls.index("aten::sin")
    (by_route,) = reports(run(loaded, "%%flroute --group route" + cell)[1])
    assert ">native<" in by_route
    assert "aten::exp" not in by_route


def test_cells_that_hold_little(loaded: InteractiveShell) -> None:
    assert run(loaded, "%%flroute\n# nothing\n")[0].success
    assert run(loaded, "%%flroute\n%pwd\n")[0].success, "magics inside are IPython's as ever"
    result, shown = run(loaded, "%%flroute\nx = = 1")
    assert isinstance(result.error_in_exec, SyntaxError)
    assert not reports(shown), "nothing ran"


def test_sessions_of_cells_nest_in_that_of_the_notebook(loaded: InteractiveShell) -> None:
    assert run(loaded, "outer = flroute.enable('reference:1').start()")[0].success
    assert run(loaded, "%%flroute reference:0 --session inner\nx = torch.ones(2).exp()")[0].success
    assert loaded.user_ns["x"].device == torch.device("fl:0")
    assert run(loaded, "y = torch.ones(2).exp()")[0].success
    assert loaded.user_ns["y"].device == torch.device("fl:1")
    outer = loaded.user_ns["outer"]
    run(loaded, "outer.close(); outer.close()")
    assert torch.ones(1).device.type == "cpu"
    assert {d.device for d in outer.decisions if d.op == "aten::exp"} == {"fl:0", "fl:1"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--fallback eror", ["--fallback", "'eror'", "warn", "allow", "error"]),
        ("--precision low", ["highest", "high", "medium"]),
        ("--sort size", ["calls", "seconds", "bytes", "op", "module", "route"]),
        ("--group size", ["op", "module", "route", "phase"]),
        ("--tim3", ["unrecognized arguments: --tim3", "--time", "--fallback {warn,allow,error}"]),
        ("reference reference:1", ["unrecognized arguments: reference:1", "[device]"]),
        ("--session 1x", ["'1x' is no name for a variable", "--session NAME"]),
        ("--session class", ["'class' is no name for a variable"]),
        ("--fallback", ["expected one argument"]),
        ("'reference", ["No closing quotation", "[device]"]),
        ("nobody", ["no vendor named 'nobody'", "reference"]),
        ("reference:99", ["reference:0, reference:1"]),
    ],
)
def test_a_mistake_in_the_line_is_answered_with_what_is_allowed(
    line: str, words: list[str], loaded: InteractiveShell
) -> None:
    result, shown = run(loaded, f"%%flroute {line}\nran = True")
    assert isinstance(result.error_in_exec, UsageError)
    assert "ran" not in loaded.user_ns
    assert "Traceback" not in shown.stdout + shown.stderr
    for word in words:
        assert word in str(result.error_in_exec)


def test_the_magic_explains_itself(loaded: InteractiveShell) -> None:
    found = loaded.object_inspect("%%flroute")
    assert "--fallback {warn,allow,error}" in found["docstring"]
    assert "\n  %%flroute [--" in found["docstring"]


def test_a_wrong_word_is_told_what_the_line_looks_like(loaded: InteractiveShell) -> None:
    result, _ = run(loaded, "%%flroute reference --fallback eror\n1")
    assert "What is allowed: %%flroute [--fallback {warn,allow,error}]" in str(result.error_in_exec)


def test_a_traceback_has_no_frames_but_the_cells(loaded: InteractiveShell) -> None:
    _, shown = run(loaded, "%%flroute reference\n1 / 0")
    assert "notebook.py" not in shown.stdout + shown.stderr
    assert "1 / 0" in shown.stdout + shown.stderr


# -- the example -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The example after all its cells ran in a kernel of its own."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(variable, str(tmp_path_factory.mktemp(variable.lower())))
        found = nbformat.read(NOTEBOOK, as_version=4)
        NotebookClient(
            found, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(NOTEBOOK.parent)}}
        ).execute()
    return found


def test_the_example_is_kept_without_outputs_and_in_the_form_that_nbformat_writes() -> None:
    found = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(found)
    code = [cell for cell in found.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    assert NOTEBOOK.read_text() == nbformat.writes(found) + "\n"
    assert set(found.metadata) == {"kernelspec", "language_info"}
    assert set(found.metadata.language_info) == {"name"}, "no version of the machine that made it"


def test_the_example_runs_and_shows_what_it_says(executed: Any) -> None:
    shown = [json.dumps(cell.get("outputs", [])) for cell in executed.cells]
    page = "\n".join(shown)
    for what in (
        "reference:0",
        "reference/numpy:mm",
        "float32 [4, 4] on fl:0 (reference:0)",
        "aten::mm",
        "open, fallback=warn",
        "closed, fallback=warn",
        "native: 100.0% of the ops that compute",
    ):
        assert what in page
    assert "fallbacks: none" in page
    assert '"stderr"' not in page


def test_text_is_text_and_a_cell_that_fails_fails_the_run() -> None:
    cells = (
        "import flroute; print(flroute.enable('reference').report())",
        "%load_ext flroute",
        "%%flroute\n1 / 0",
        "print('went on')",
    )
    run = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        NotebookClient(run, timeout=120, kernel_name="python3").execute()
    printed, _, raised, after = (cell.outputs for cell in run.cells)
    assert [output.output_type for output in printed] == ["stream"], "rich would display it"
    assert "native share" in printed[0].text
    assert [output.output_type for output in raised] == ["display_data", "error"]
    assert not after


def browser() -> str:
    """Chromium; CI must have it."""
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        if found := shutil.which(name):
            return found
    if os.environ.get("CI"):
        pytest.fail("CI has no Chromium to look at pages with: .ci/run installs it")
    pytest.skip("no Chromium to look at pages with: apt-get install chromium")


def test_without_a_browser_ci_fails_and_others_are_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=r"\.ci/run installs it"):
        browser()
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"):
        browser()


def opened(page: str, folder: Path, *options: str) -> tuple[str, list[str]]:
    """The document that a page becomes in the browser, and what it says on the console."""
    file = folder / "page.html"
    file.write_text(page)
    command = [
        browser(),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--enable-logging=stderr",
    ]
    command += [
        f"--user-data-dir={folder / 'profile'}",
        "--virtual-time-budget=5000",
        *options,
        "--dump-dom",
        file.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def exported(executed: Any, theme: str) -> str:
    """As nbconvert writes it, without the libraries it would fetch: the notebook has neither formulas nor diagrams."""
    none = dict.fromkeys(("mathjax_url", "require_js_url", "jquery_url", "mermaid_js_url"), "")
    page, _ = HTMLExporter(theme=theme, **none).from_notebook_node(executed)
    return str(page)


def test_the_browsers_console_is_read(tmp_path: Path) -> None:
    _, console = opened("<script>undefined_function()</script>", tmp_path)
    assert any("undefined_function" in line for line in console)


LOOK_AT_IT = """<script>
const rgb = text => text.match(/[\\d.]+/g).map(Number);
const luminance = c => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => {
  const v = c[i] / 255; return sum + weight * (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); }, 0);
const ground = element => { for (; element; element = element.parentElement) {
  const c = rgb(getComputedStyle(element).backgroundColor); if (c.length < 4 || c[3] > 0) return c; }
  return matchMedia("(prefers-color-scheme: dark)").matches && getComputedStyle(document.documentElement).colorScheme.includes("dark")
    ? [18, 18, 18] : [255, 255, 255]; };
const contrasts = [...document.querySelectorAll(".flroute td, .flroute th, .flroute p, .flroute pre")].map(element => {
  const [a, b] = [luminance(rgb(getComputedStyle(element).color)), luminance(ground(element))];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); });
document.body.setAttribute("data-least-contrast", Math.min(...contrasts));
const numbers = [...document.querySelectorAll(".flroute td")].map(cell => [cell.className, getComputedStyle(cell).textAlign].join());
document.body.setAttribute("data-alignments", [...new Set(numbers)].sort().join(" "));
document.body.setAttribute("data-looked-at", contrasts.length);
document.body.setAttribute("data-is-dark", String(matchMedia("(prefers-color-scheme: dark)").matches));
</script>"""


@pytest.mark.parametrize("system", ["light", "dark"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_export_opens_without_errors_and_can_be_read(
    theme: str, system: str, executed: Any, tmp_path: Path
) -> None:
    """Each theme of Jupyter's, on a system that prefers light or dark."""
    page = exported(executed, theme).replace("</body>", LOOK_AT_IT + "</body>")
    document, console = opened(page, tmp_path, *preferring(system))
    assert console == []
    check_looks(document, system, at_least=50)


@pytest.mark.parametrize("system", ["light", "dark"])
def test_a_page_of_its_own_can_be_read(system: str, tmp_path: Path) -> None:
    path = Report([DECISION], device="fl:0").to_html(tmp_path / "report.html")
    document, console = opened(
        path.read_text().replace("</body>", LOOK_AT_IT + "</body>"), tmp_path, *preferring(system)
    )
    assert console == []
    check_looks(document, system, at_least=8)


def preferring(system: str) -> list[str]:
    return ["--blink-settings=preferredColorScheme=" + {"dark": "0", "light": "1"}[system]]


def check_looks(document: str, system: str, at_least: int) -> None:
    def said(name: str) -> str:
        found = re.search(rf'data-{name}="([^"]*)"', document)
        assert found is not None
        return found[1]

    assert said("is-dark") == str(system == "dark").lower()
    assert int(said("looked-at")) >= at_least
    assert said("alignments") == ",left flroute-number,right", "whatever Jupyter's own tables look like"
    assert float(said("least-contrast")) >= 4.5, "what WCAG 2 asks of text"
