"""Trace files are read back as they were written, survive what happens to files, and are compared."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import flroute
from flroute.cli import app
from flroute.routing.trace import TraceError, read

runner = CliRunner()


def record(path: Path, *ops: str) -> flroute.Session:
    """A session that calls some unary ops."""
    with flroute.enable("reference", fallback="allow", trace=path) as session:
        for op in ops:
            getattr(torch, op)(torch.zeros(2))
    return session


class TestReading:
    def test_gives_back_the_decisions(self, tmp_path: Path) -> None:
        session = record(tmp_path / "t.jsonl", "exp", "exp", "erfinv")
        found = read(tmp_path / "t.jsonl")
        assert found.decisions == session.decisions
        assert found.remark == ""

    def test_takes_reports_too(self, tmp_path: Path) -> None:
        session = record(tmp_path / "t.jsonl", "exp", "erfinv")
        assert read(session.report().to_json(tmp_path / "r.json")).decisions == session.decisions

    def test_keeps_sessions_apart_that_stand_among_each_other(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl"
        with flroute.enable("reference", trace=path) as outer:
            torch.exp(torch.zeros(2))
            inner = record(path, "exp", "tan")
            torch.sin(torch.zeros(2))
        total = read(path).decisions
        calls = {op: sum(d.calls for d in total if d.op == f"aten::{op}") for op in ("exp", "tan", "sin")}
        assert calls == {"exp": 3, "tan": 2, "sin": 1}, "the outer session's totals include the inner one's"
        assert len(total) == len(inner.decisions) + len(outer.decisions)

    def test_reads_up_to_a_line_that_is_cut_off(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl"
        record(path, "exp")
        text = path.read_text()
        path.write_text(text[:-20])
        found = read(path)
        assert f"{path}:{text.count(chr(10))}: cut off" in found.remark
        assert "aten::exp" in {d.op for d in found.decisions} or found.decisions

    def test_takes_first_decisions_of_a_session_that_never_ended(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl"
        session = record(path, "exp")
        kept = [line for line in path.read_text().splitlines() if json.loads(line)["kind"] != "total"]
        path.write_text("\n".join(kept) + "\n")
        found = read(path)
        assert [d.op for d in found.decisions] == [d.op for d in session.decisions]
        assert "without an end" in found.remark

    def test_gives_back_modules_and_phases(self, tmp_path: Path) -> None:
        module = torch.nn.Sequential(torch.nn.Linear(3, 3)).to("fl")
        with flroute.enable("reference", trace=tmp_path / "t.jsonl") as session:
            module(torch.ones(2, 3)).sum().backward()
        found = read(tmp_path / "t.jsonl").decisions
        assert found == session.decisions
        assert {(d.module, str(d.phase)) for d in found} >= {("0", "forward"), (None, "backward")}

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "is empty"),
            ("hello\n", ":1: not a line of a trace"),
            ('{"a": 1}', "neither a trace nor a report"),
            (
                '{"kind": "header", "session": "1", "schema_version": 9}\n',
                "schema version 9, this flroute reads 1",
            ),
            ('{"schema_version": 9, "decisions": []}', "schema version 9"),
            (
                '{"kind": "total", "session": "1"}\n{}\n',
                ":1: the record of a session whose header is missing",
            ),
            (
                '{"kind": "header", "session": "1", "schema_version": 1}\n{"kind": "total", "session": "1"}\n{}\n',
                ":2: not a decision",
            ),
        ],
    )
    def test_refuses_what_is_no_trace(self, tmp_path: Path, text: str, message: str) -> None:
        path = tmp_path / "t.jsonl"
        path.write_text(text)
        with pytest.raises(TraceError, match=message):
            read(path)

    def test_refuses_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(TraceError, match=r"none\.jsonl cannot be read"):
            read(tmp_path / "none.jsonl")


class TestWriting:
    def test_a_full_disk_ends_the_trace_and_not_the_program(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, "flroute"):
            session = record(Path("/dev/full"), "exp", "tan")
        assert [r.getMessage() for r in caplog.records if "/dev/full" in r.getMessage()] == [
            "the trace /dev/full ends here, and the program goes on: [Errno 28] No space left on device"
        ]
        assert {"aten::exp", "aten::tan"} <= {d.op for d in session.decisions}
        report = session.report()
        assert report.lost_records == 2 * len(session.decisions)
        assert f"but for {report.lost_records} records that could not be written" in str(report)

    def test_a_long_file_is_put_aside(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "t.jsonl"
        first = record(path, "exp")
        monkeypatch.setenv("FLROUTE_TRACE_MAX_BYTES", "10")
        second = record(path, "tan")
        assert read(path).decisions == second.decisions
        assert read(tmp_path / "t.jsonl.1").decisions == first.decisions

    def test_a_session_after_one_that_was_killed_is_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl"
        record(path, "exp")
        text = path.read_text()
        path.write_text(text[:-20])
        second = record(path, "tan")
        found = read(path)
        assert found.decisions[-len(second.decisions) :] == second.decisions
        assert f"{path}:{text.count(chr(10))}: cut off in the middle of a line" in found.remark

    def test_a_disk_that_fills_up_in_the_middle_of_a_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """An unbuffered file takes what fits, and raises only at the next write."""

        class Filling:
            def __init__(self, file: Any) -> None:
                self.file, self.room = file, 1000

            def write(self, line: bytes) -> int:
                written: int = self.file.write(line[: self.room])
                self.room -= written
                return written

            def close(self) -> None:
                self.file.close()

        real = Path.open
        monkeypatch.setattr(
            Path,
            "open",
            lambda self, mode="r", **more: (
                Filling(f) if (f := real(self, mode, **more)) and mode == "ab" else f
            ),
        )
        with caplog.at_level(logging.WARNING, "flroute"):
            session = record(tmp_path / "t.jsonl", "exp", "tan")
        told = [r.getMessage() for r in caplog.records if "t.jsonl" in r.getMessage()]
        assert len(told) == 1
        assert "No space left on device" in told[0]
        assert session.report().lost_records > 0
        assert "cut off" in read(tmp_path / "t.jsonl").remark

    def test_threads_do_not_cut_into_each_other(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl"
        threads = [threading.Thread(target=record, args=(path, "exp", "tan", "sin")) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(d.calls for d in read(path).decisions if d.op == "aten::exp") >= 4


class TestDiff:
    @pytest.fixture
    def runs(self, tmp_path: Path) -> tuple[str, str]:
        record(tmp_path / "a.jsonl", "exp", "tan")
        with flroute.enable(
            "reference", fallback="allow", trace=tmp_path / "b.jsonl", order={"aten::exp": ["host"]}
        ):
            torch.exp(torch.zeros(2))
            torch.sin(torch.zeros(2))
        return str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")

    def test_names_new_gone_and_changed_ops(self, runs: tuple[str, str]) -> None:
        shown = runner.invoke(app, ["diff", *runs])
        assert shown.exit_code == 1
        rows = [line.split() for line in shown.output.splitlines()]
        assert [
            "aten::exp",
            "float32",
            "changed",
            "native",
            "reference/numpy:exp",
            "fallback",
            "policy",
        ] in rows
        assert ["aten::sin", "float32", "new", "-", "native", "reference/numpy:sin"] in rows
        assert ["aten::tan", "float32", "gone", "native", "reference/numpy:tan", "-"] in rows
        assert "3 changed, 1 of them new fallbacks" in shown.output

    def test_in_json(self, runs: tuple[str, str]) -> None:
        changes = json.loads(runner.invoke(app, ["diff", "--json", *runs]).output)
        assert {c["op"]: (c["kind"], c["new_fallback"]) for c in changes} == {
            "aten::exp": ("changed", True), "aten::sin": ("new", False), "aten::tan": ("gone", False),
        }  # fmt: skip

    def test_a_fallback_that_is_gone_is_no_failure(self, runs: tuple[str, str]) -> None:
        assert runner.invoke(app, ["diff", *reversed(runs)]).exit_code == 0

    def test_of_equal_runs(self, runs: tuple[str, str]) -> None:
        shown = runner.invoke(app, ["diff", runs[0], runs[0]])
        assert (shown.exit_code, shown.output.splitlines()[0]) == (0, "no op is served in another way")

    def test_of_no_trace_is_an_error_in_words(self, tmp_path: Path, runs: tuple[str, str]) -> None:
        shown = runner.invoke(app, ["diff", runs[0], str(tmp_path / "none.jsonl")])
        assert shown.exit_code == 2
        assert "none.jsonl cannot be read" in shown.output


class TestConfig:
    def test_says_where_each_setting_comes_from(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "flroute.toml").write_text('timing = true\norder = {"aten::mm" = ["host"]}\n')
        monkeypatch.setenv("FLROUTE_FALLBACK", "error")
        found = {row["setting"]: row for row in json.loads(runner.invoke(app, ["config", "--json"]).output)}
        assert (found["fallback"]["value"], found["fallback"]["where"]) == ("error", "FLROUTE_FALLBACK")
        assert (found["timing"]["value"], found["timing"]["where"]) == (True, f"{tmp_path}/flroute.toml:1")
        assert found["order"]["value"] == {"aten::mm": ["host"]}
        assert (found["debug"]["value"], found["debug"]["where"]) == (False, "default")
        assert "FLROUTE_FALLBACK" in runner.invoke(app, ["config"]).output

    def test_says_what_is_wrong(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FLROUTE_FALLBACK", "eror")
        shown = runner.invoke(app, ["config"])
        assert shown.exit_code == 2
        assert "Did you mean 'error'" in shown.output
