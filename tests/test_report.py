"""Reports: the numbers, the table, the notebook's HTML and the file."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import flroute
from flroute.report import Report
from flroute.vocabulary import Decision, FallbackPolicy, Phase, Reason, Rejection, Route

ADD = Decision(
    "aten::add.Tensor", Route.NATIVE, "reference/numpy:add", "fl:0", Reason.MATCHED,
    dtypes=("float32", "float32"), shapes=((2, 3), ()), calls=7, seconds=0.25,
)  # fmt: skip
ADD_64 = Decision(
    "aten::add.Tensor", Route.NATIVE, "reference/numpy:add", "fl:0", Reason.MATCHED,
    dtypes=("float64", "float64"), shapes=((2, 3), ()), calls=1, seconds=1.5,
)  # fmt: skip
ERF = Decision(
    "aten::erf", Route.FALLBACK, None, "fl:0", Reason.NO_KERNEL, detail="write a kernel for <aten::erf>",
    rejected=(Rejection("acme/asm:erf", Reason.DTYPE, "float64"),),
    call_site="train.py:7", calls=2, seconds=0.001, bytes_to_host=800, bytes_to_device=400,
)  # fmt: skip
LINEAR = Decision("aten::linear", Route.DECOMPOSED, None, "fl:0", Reason.COMPOSITE, calls=5)
VIEW = Decision("aten::t", Route.VIEW, None, "fl:0", Reason.METADATA, calls=1000)
UPLOAD = Decision("aten::_to_copy", Route.COPY, None, "fl:0", Reason.TRANSFER, calls=1, bytes_to_device=12)
ALL = (ADD, ADD_64, ERF, LINEAR, VIEW, UPLOAD)


@pytest.fixture
def report() -> Report:
    return Report(
        ALL, device="fl:0", settings={"fallback": FallbackPolicy.WARN, "order": {"aten::mm": ("a",)}}
    )


def test_only_native_and_fallback_calls_count_as_computing(report: Report) -> None:
    assert report.native_share == 8 / 10


def test_no_share_where_nothing_was_computed() -> None:
    report = Report([VIEW, LINEAR, UPLOAD], device="fl:0")
    assert report.native_share is None
    assert "native share: nothing was computed" in str(report)
    assert str(Report([], device="fl:0"))


def test_bytes_fallbacks_and_totals(report: Report) -> None:
    assert (report.bytes_to_device, report.bytes_to_host) == (412, 800)
    assert report.fallbacks == [ERF]
    native = report.totals[Route.NATIVE]
    assert (native.ops, native.calls, native.seconds) == (1, 8, 1.75)
    assert report.totals[Route.VIEW].seconds is None
    assert Route.HOST not in report.totals


def test_rows_add_up_what_differs_in_signature_only(report: Report) -> None:
    add, *others = report.rows()
    assert (add.op, add.calls, add.seconds) == ("aten::add.Tensor", 8, 1.75)
    assert len(others) == 4


def test_the_table_says_who_what_and_why(report: Report) -> None:
    text = str(report)
    for word in ("op", "route", "kernel", "calls", "time", "reason", "reference/numpy:add", "1.75 s"):
        assert word in text
    assert "aten::erf, 2 calls, first from train.py:7: no_kernel: write a kernel for <aten::erf>" in text
    assert "native share: 80.0%" in text
    assert "412 to the device, 800 to the host" in text
    assert "\x1b[" not in text
    assert repr(report) == text


@pytest.mark.parametrize("width", [80, 100, 200])
def test_names_stay_whole_on_every_terminal(width: int, report: Report) -> None:
    text = io.StringIO()
    Console(file=text, width=width).print(report)
    for name in (
        "aten::add.Tensor",
        "reference/numpy:add",
        "aten::_to_copy",
        "fallback",
        "native share: 80.0%",
    ):
        assert name in text.getvalue()
    assert max(map(len, text.getvalue().splitlines())) <= width


def test_markup_in_a_reason_is_text() -> None:
    odd = Decision(
        "aten::erf", Route.FALLBACK, None, "fl:0", Reason.PREDICATE, detail="[red]not[/red] [/x]", calls=1
    )
    assert "[red]not[/red] [/x]" in str(Report([odd], device="fl:0"))


def test_every_fallback_is_told_once_with_its_reason() -> None:
    report = Report(
        [ERF, replace(ERF, dtypes=("float64",), calls=5), replace(ERF, detail="other")], device="fl:0"
    )
    told = [line for line in report.summary() if line.startswith("  aten::erf")]
    assert [line.split(",")[1] for line in told] == [" 7 calls", " 2 calls"]
    assert len(report.rows()) == 1
    assert "fallbacks: none" in str(Report([ADD], device="fl:0"))


def test_the_trace_is_named() -> None:
    assert "every decision is in calls.jsonl" in str(Report([], device="fl:0", trace_path="calls.jsonl"))


def test_records_that_were_lost_are_told() -> None:
    report = Report([], device="fl:0", trace_path="calls.jsonl", lost_records=3)
    assert "every decision is in calls.jsonl, but for 3 records that could not be written" in str(report)
    assert report.sorted_by("op").to_dict()["lost_records"] == 3


def test_a_share_just_under_one_does_not_read_as_all() -> None:
    many = Decision("aten::add.Tensor", Route.NATIVE, "k", "fl:0", Reason.MATCHED, calls=10**6)
    one = Decision("aten::erf", Route.FALLBACK, None, "fl:0", Reason.NO_KERNEL, calls=1)
    assert "native share: 99.9%" in str(Report([many, one], device="fl:0"))
    assert "native share: 100.0%" in str(Report([many], device="fl:0"))


class _Cells(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1))
def test_html_is_escaped(detail: str) -> None:
    odd = Decision("aten::erf", Route.FALLBACK, None, "fl:0", Reason.PREDICATE, detail=detail, calls=1)
    cells = _Cells(Report([odd], device="fl:0")._repr_html_())
    assert f"  aten::erf, 1 call, first from unknown: predicate: {detail}" in cells.texts
    assert set(cells.tags) == {"div", "style", "table", "thead", "tbody", "tr", "th", "td", "p", "br"}


def test_the_file_holds_everything(report: Report, tmp_path: Path) -> None:
    path = report.to_json(tmp_path / "new" / "decisions.json")
    read = json.loads(path.read_text())
    assert read == report.to_dict()
    assert read["schema_version"] == 1
    assert read["settings"] == {"fallback": "warn", "order": {"aten::mm": ["a"]}}
    assert read["totals"]["fallback"] == {"ops": 1, "calls": 2, "seconds": 0.001}
    erf = read["decisions"][2]
    assert (erf["op"], erf["route"], erf["reason"]) == ("aten::erf", "fallback", "no_kernel")
    assert erf["rejected"] == [{"kernel": "acme/asm:erf", "reason": "dtype", "detail": "float64"}]


@pytest.mark.parametrize(
    ("key", "first"),
    [
        ("calls", VIEW),
        ("seconds", ADD_64),
        ("bytes", ERF),
        ("op", UPLOAD),
        ("module", ADD),
        ("route", ADD),
    ],
)
def test_sorted_by(key: str, first: Decision, report: Report) -> None:
    ordered = report.sorted_by(key)
    assert ordered.decisions[0] == first
    assert set(ordered.decisions) == set(ALL)
    assert ordered.settings == report.settings


def test_sorted_by_something_else_says_what_there_is(report: Report) -> None:
    with pytest.raises(ValueError, match="by calls, seconds, bytes, op, module, route, not by 'size'"):
        report.sorted_by("size")


GROUPED = (
    replace(ADD, module="encoder.0", phase=Phase.FORWARD),
    replace(ERF, module="encoder.0", phase=Phase.FORWARD),
    replace(ADD_64, module="encoder.1", phase=Phase.BACKWARD),
    VIEW,
)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("op", [("aten::t", 1000, 0, 0), ("aten::add.Tensor", 8, 8, 0), ("aten::erf", 2, 0, 2)]),
        ("module", [("(no module)", 1000, 0, 0), ("encoder.0", 9, 7, 2), ("encoder.1", 1, 1, 0)]),
        ("route", [("view", 1000, 0, 0), ("native", 8, 8, 0), ("fallback", 2, 0, 2)]),
        ("phase", [("forward", 1009, 7, 2), ("backward", 1, 1, 0)]),
    ],
)
def test_grouped_by(key: str, expected: list[Any]) -> None:
    groups = Report(GROUPED, device="fl:0").grouped_by(key)
    assert [(g.name, g.calls, g.native, g.fallback) for g in groups] == expected
    assert len(groups) == len(expected)
    assert sum(g.bytes_to_host for g in groups) == 800
    assert str(groups).splitlines()[0].split()[0] == key
    assert {key, *(name for name, *_ in expected)} <= set(_Cells(groups._repr_html_()).texts)


def test_grouped_by_something_else_says_what_there_is(report: Report) -> None:
    with pytest.raises(ValueError, match="by op, module, route, phase, not by 'size'"):
        report.grouped_by("size")


def test_a_page_stands_alone(report: Report, tmp_path: Path) -> None:
    path = report.to_html(tmp_path / "new" / "report.html")
    text = path.read_text()
    assert report._repr_html_() in text
    assert "http" not in text
    assert {"html", "meta", "title", "style"} <= set(_Cells(text).tags)


def test_signatures_that_were_added_up_are_told() -> None:
    report = Report([replace(ADD, rest=True, shapes=()), ERF], device="fl:0")
    assert report.capped == ["aten::add.Tensor"]
    assert "signatures beyond the first 512 of an op are added up: aten::add.Tensor" in str(report)
    assert "signatures" not in str(Report([ADD], device="fl:0"))


def test_a_frame_has_a_row_for_each_decision(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in: pandas is no dependency."""
    pandas = ModuleType("pandas")
    pandas.DataFrame = lambda rows, columns: (rows, columns)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    rows, columns = report.to_pandas()
    assert rows == report.to_dict()["decisions"]
    assert columns == list(rows[0])


def test_without_pandas_the_remedy_is_named(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(flroute.FlrouteError, match=r"needs pandas.*pip install pandas"):
        report.to_pandas()


def test_the_lines_of_a_sorted_table_are_sorted_after_adding_up() -> None:
    parts = [replace(ERF, calls=5, shapes=((n,),)) for n in range(3)]
    report = Report([replace(ADD, calls=10), *parts], device="fl:0")
    assert [row.op for row in report.rows()] == ["aten::add.Tensor", "aten::erf"]
    assert [(row.op, row.calls) for row in report.sorted_by("calls").rows()] == [
        ("aten::erf", 15),
        ("aten::add.Tensor", 10),
    ]
