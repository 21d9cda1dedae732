"""Settings: which source wins, and what is said about a wrong one."""

from __future__ import annotations

import os
import re
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flroute.errors import SettingsError
from flroute.settings import SETTINGS, VARIABLES, Settings, explain_settings, load_settings
from flroute.settings_page import to_markdown
from flroute.vocabulary import FallbackPolicy, Precision


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, current, with no variable of ours set."""
    for variable in [name for name in os.environ if name.startswith("FLROUTE_")]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_defaults() -> None:
    assert load_settings() == Settings()
    assert load_settings().fallback is FallbackPolicy.WARN
    assert load_settings().precision is Precision.HIGHEST


def test_settings_cannot_change() -> None:
    with pytest.raises(FrozenInstanceError):
        load_settings().timing = True  # type: ignore[misc]


def test_each_source_wins_over_the_next(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "pyproject.toml").write_text('[tool.flroute]\nfallback = "allow"\ndevice = "from-pyproject"\n')
    assert load_settings().fallback == "allow"
    (project / "flroute.toml").write_text('fallback = "error"\n')
    assert load_settings().fallback == "error"
    assert load_settings().device == "from-pyproject"
    monkeypatch.setenv("FLROUTE_FALLBACK", "warn")
    assert load_settings().fallback == "warn"
    assert load_settings(fallback="allow").fallback == "allow"


def test_none_is_not_given_and_an_empty_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLROUTE_DEVICE", "opaque")
    monkeypatch.setenv("FLROUTE_TRACE", "")
    assert load_settings(device=None).device == "opaque"
    assert load_settings().trace is None


def test_files_are_found_upward_and_the_nearest_wins(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = project / "a" / "b"
    inner.mkdir(parents=True)
    (project / "flroute.toml").write_text("timing = true\n")
    (project / "a" / "pyproject.toml").write_text("[project]\nname = 'has nothing for us'\n")
    monkeypatch.chdir(inner)
    assert load_settings().timing is True
    (inner / "flroute.toml").write_text("debug = true\n")
    assert (load_settings().timing, load_settings().debug) == (False, True)


def test_a_changed_file_is_read_again(project: Path) -> None:
    file = project / "flroute.toml"
    file.write_text("timing = true\n")
    assert load_settings().timing is True
    file.write_text("timing = false\n")
    assert load_settings().timing is False


def test_orders_of_different_ops_add_up(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "flroute.toml").write_text('[order]\n"aten::mm" = ["numpy"]\n"aten::add.Tensor" = ["host"]\n')
    monkeypatch.setenv("FLROUTE_ORDER", "aten::mm=triton, numpy; aten::relu=host")
    assert load_settings(order={"aten::relu": ["numpy"]}).order == {
        "aten::mm": ("triton", "numpy"),
        "aten::add.Tensor": ("host",),
        "aten::relu": ("numpy",),
    }


def test_a_path_may_be_the_trace(project: Path) -> None:
    assert load_settings(trace=project / "t.jsonl").trace == str(project / "t.jsonl")


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("TRUE", True), ("on", True), ("0", False), ("no", False)]
)
def test_flags_in_the_environment(text: str, value: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLROUTE_TIMING", text)
    monkeypatch.setenv("FLROUTE_AUTOLOAD", text)
    assert load_settings().timing is value
    assert load_settings().autoload is value


def test_explained_with_their_origin(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "flroute.toml").write_text("# ours\ntiming = true\n")
    monkeypatch.setenv("FLROUTE_DEVICE", "opaque")
    explained = explain_settings(fallback="error")
    assert {name: origin.where for name, origin in explained.items()} == {
        "timing": f"{project / 'flroute.toml'}:2",
        "device": "FLROUTE_DEVICE",
        "fallback": "argument",
    }


# What is wrong, and where -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('device = "x"\nfallback = "eror"\n', 2),
        ('# a\n\n# fallback = "allow"\n\nfallback = "eror"\n', 5),
        ('"fallback" = "eror"', 1),
        ('device = """\nfallback = 1\n"""\nfallback = """\\\n  eror"""\n', 4),
    ],
    ids=["plain", "comments", "quoted", "several lines"],
)
def test_a_wrong_value_in_a_file(text: str, line: int, project: Path) -> None:
    (project / "flroute.toml").write_text(text)
    with pytest.raises(SettingsError) as error:
        load_settings()
    message = str(error.value)
    assert message.startswith(f"{project / 'flroute.toml'}:{line}: 'eror' is not allowed for 'fallback'.")
    assert "Did you mean 'error'?" in message
    assert "Allowed: warn, allow, error." in message


@pytest.mark.parametrize(
    "text",
    [
        "[tool.flroute]\n\nfallbck = 1\n",
        "[tool]\n\nflroute = { fallbck = 1 }\n",
        "[tool]\n\nflroute.fallbck = 1\n",
        "[tool.other]\n\n[tool.flroute.fallbck]\n",
    ],
)
def test_an_unknown_key_in_pyproject(text: str, project: Path) -> None:
    (project / "pyproject.toml").write_text(text)
    with pytest.raises(SettingsError, match=r"pyproject\.toml:3: unknown setting 'fallbck'") as error:
        load_settings()
    assert "Did you mean 'fallback'? Known: device, fallback," in str(error.value)


@pytest.mark.parametrize(
    ("text", "line"), [("timing = true\ndebug = = true\n", 2), ("timing = true\norder = [\n", 3)]
)
def test_malformed_toml(text: str, line: int, project: Path) -> None:
    (project / "flroute.toml").write_text(text)
    with pytest.raises(SettingsError, match=rf"flroute\.toml:{line}: not valid TOML"):
        load_settings()


def test_a_malformed_pyproject_that_is_not_ours_is_left_to_others(project: Path) -> None:
    (project / "pyproject.toml").write_text("[project\n")
    assert load_settings() == Settings()


def test_our_table_must_be_a_table(project: Path) -> None:
    (project / "pyproject.toml").write_text("[tool]\nflroute = 3\n")
    with pytest.raises(SettingsError, match=r"pyproject\.toml:2: tool\.flroute must be a table"):
        load_settings()


def test_autoload_in_a_file_says_where_it_belongs(project: Path) -> None:
    (project / "flroute.toml").write_text("autoload = true\n")
    with pytest.raises(SettingsError, match=r"flroute\.toml:1: 'autoload' .*FLROUTE_AUTOLOAD"):
        load_settings()


def test_an_unknown_variable_lists_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLROUTE_FALBACK", "warn")
    with pytest.raises(SettingsError, match="unknown variable 'FLROUTE_FALBACK'") as error:
        load_settings()
    assert "Did you mean 'FLROUTE_FALLBACK'?" in str(error.value)
    assert all(variable in str(error.value) for variable in VARIABLES)


@pytest.mark.parametrize("variable", ["FLROUTE_PRECISION", "FLROUTE_TIMING", "FLROUTE_ORDER"])
def test_a_wrong_value_in_the_environment(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "maybe")
    with pytest.raises(SettingsError, match=f"{variable}: 'maybe' is not allowed for .* Allowed: "):
        load_settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fallback", "sometimes"),
        ("fallback", ["error"]),
        ("precision", 3),
        ("timing", 1),
        ("device", 0),
        ("device", ""),
        ("order", ["numpy"]),
        ("order", {"mm": ["numpy"]}),
        ("order", {"aten::mm": "numpy"}),
        ("order", {"aten::mm": []}),
    ],
)
def test_a_wrong_argument(name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=f"argument {name}: {re.escape(repr(value))} is not allowed"):
        load_settings(**{name: value})


def test_an_unknown_argument() -> None:
    with pytest.raises(SettingsError, match=r"unknown setting 'fall_back'\. Did you mean 'fallback'"):
        load_settings(fall_back="error")


@given(st.text(min_size=1))
def test_every_word_but_the_three_is_refused(word: str) -> None:
    if word in list(FallbackPolicy):
        assert load_settings(fallback=word).fallback == word
    else:
        with pytest.raises(SettingsError):
            load_settings(fallback=word)


def test_every_setting_says_what_it_is() -> None:
    assert all(setting.description for setting in SETTINGS.values())
    assert len(VARIABLES) == len(SETTINGS)


def test_a_deleted_working_directory_has_no_files(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = project / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert load_settings() == Settings()


# The page -----------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[1]


def test_the_page_is_up_to_date() -> None:
    written = (ROOT / "docs" / "settings.md").read_text()
    assert written == to_markdown(), "make it anew: python -m flroute.settings_page > docs/settings.md"


def test_every_variable_is_in_the_registry() -> None:
    """Whatever the code or a page for people calls a variable of ours is one."""
    files = [*(ROOT / "src").rglob("*.py"), *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    named = {name: file for file in files for name in re.findall(r"FLROUTE_[A-Z_]+[A-Z]", file.read_text())}
    assert {"FLROUTE_AUTOLOAD", "FLROUTE_RULES"} <= named.keys()
    assert {name: file for name, file in named.items() if name not in VARIABLES} == {}


def test_rules_on_the_page_are_read(project: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", to_markdown(), re.DOTALL)
    (project / "flroute.toml").write_text(example)
    (rule,) = load_settings().rules
    assert (rule.op, rule.min_numel, rule.phase) == ("aten::*_backward", 4096, ("forward",))


def test_every_setting_says_what_it_takes() -> None:
    assert all(setting.allowed for setting in SETTINGS.values())
