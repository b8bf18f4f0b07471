"""What agents of an earlier release report is read as that release read it: an upgrade leaves agents as they are.

The reports are those that the tests of a61ebed1 encoded (2026-11-28), each with what its own decoder returned.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest

from falcon_core.wire.reporting.reports import decode_summary

REPORTS = (Path(__file__).resolve().parents[2] / "data" / "wire" / "reports.jsonl").read_bytes().splitlines()


@pytest.mark.parametrize("line", REPORTS, ids=range(len(REPORTS)))
def test_a_report_of_an_earlier_agent_is_read_as_before(line: bytes) -> None:
    kept = msgspec.json.decode(line)
    now = msgspec.to_builtins(decode_summary(base64.b64decode(kept["raw"]), "p"))
    assert known(now, kept["read"]) == kept["read"]


def known(now: Any, before: Any) -> Any:
    """Return what is read now without the fields that the earlier release did not have."""
    if isinstance(now, dict) and isinstance(before, dict):
        return {name: known(now[name], before[name]) for name in before if name in now}
    if isinstance(now, list) and isinstance(before, list) and len(now) == len(before):
        return [known(*pair) for pair in zip(now, before, strict=True)]
    return now
