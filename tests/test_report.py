"""Reports: the numbers, the table, the notebook's HTML and the file."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from flroute.report import Report
from flroute.vocabulary import Decision, FallbackPolicy, Reason, Rejection, Route

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
    assert set(cells.tags) == {"div", "table", "thead", "tbody", "tr", "th", "td", "p", "br"}


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
    ("key", "first"), [("calls", VIEW), ("seconds", ADD_64), ("bytes", ERF), ("op", UPLOAD)]
)
def test_sorted_by(key: str, first: Decision, report: Report) -> None:
    ordered = report.sorted_by(key)
    assert ordered.decisions[0] == first
    assert set(ordered.decisions) == set(ALL)
    assert ordered.settings == report.settings


def test_sorted_by_something_else_says_what_there_is(report: Report) -> None:
    with pytest.raises(ValueError, match="by calls, seconds, bytes, op, not by 'size'"):
        report.sorted_by("size")
