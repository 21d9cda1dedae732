"""A scan for code hosts and editors: SARIF 2.1.0, the format of OASIS that they show beside the lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flroute.scan.findings import KINDS, Finding, Kind, Need, Scan

_LEVELS = {Need.NOTHING: "note", Need.FIX: "warning", Need.HAND: "warning", Need.BLOCKED: "error"}


def to_sarif(scan: Scan, version: str) -> dict[str, Any]:
    """One run with a rule for each kind of finding.

    Args:
        scan: what was found.
        version: flroute's own.
    """
    rules = [
        {
            "id": kind.value,
            "shortDescription": {"text": facts.looks_like},
            "help": {"text": f"Device-neutral: {facts.edit}"},
        }
        for kind, facts in KINDS.items()
    ]
    driver = {"name": "flroute scan", "version": version, "rules": rules}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "columnKind": "unicodeCodePoints",
                "results": [_result(finding) for finding in scan.findings],
            }
        ],
    }


def _result(finding: Finding) -> dict[str, Any]:
    where = f"{finding.place}: " if finding.cell is not None else ""
    instead = f": {finding.advice}" if finding.advice else ""
    return {
        "ruleId": finding.kind.value,
        "ruleIndex": list(Kind).index(finding.kind),
        "level": "error" if finding.kind is Kind.UNREADABLE else _LEVELS[finding.need],
        "message": {"text": f"{where}{finding.source}{instead}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": Path(finding.path).as_posix()},
                    "region": {"startLine": finding.line, "startColumn": finding.column},
                }
            }
        ],
        "properties": {"need": finding.need.value, "runsUnderFlrouteRun": finding.runs},
    }
