"""What the agent passes on of a measurement of its machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest

from falcon_agent.launch.measurements import REPORTED_SECONDS, Checks, Smoke
from falcon_agent.launch.run_dir import RunDir
from falcon_core.wire.launcher.launch import CHECK_FILE, LINKS_FILE, SMOKE_FILE, LaunchCheck, LaunchStatus
from falcon_core.wire.measurement.check import CheckReport
from falcon_core.wire.measurement.check_links import MOST_BITS, MOST_LINKS, NO_PORT, PORT_COMES, LinkReport, LinksReport

State = Literal["Idle", "Running", "Stopping", "Stopped", "Exited"]


def status(check: LaunchCheck | None, state: State = "Stopped") -> LaunchStatus:
    return LaunchStatus(generation=1, dead_below=1, state=state, check=check)


def printed(folder: Path, rate: float) -> None:
    path = folder / CHECK_FILE
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'{{"scores": {{"fp32": {rate}}}}}')


def linked(folder: Path, text: str) -> None:
    path = folder / LINKS_FILE
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.rename(path)


NONE = LinksReport(NO_PORT, True, why="the executor has written no result")


def test_it_is_read_once_when_it_is_over(tmp_path: Path) -> None:
    checks = Checks(RunDir(tmp_path))
    printed(tmp_path, 0.5)
    over = status(LaunchCheck(number=3, running=False))
    assert checks.of(None) is None
    assert checks.of(status(None)) is None
    assert checks.of(status(LaunchCheck(number=3, running=True))) is None
    assert checks.of(over) == CheckReport(3, micros={"fp32": 500_000}, links=NONE)
    printed(tmp_path, 0.9)
    assert checks.of(over) == CheckReport(3, micros={"fp32": 500_000}, links=NONE)
    assert checks.of(status(LaunchCheck(number=4, running=False))) == CheckReport(
        4, micros={"fp32": 900_000}, links=NONE
    )


def test_nobody_waits_for_it_when_the_ranks_run(tmp_path: Path) -> None:
    printed(tmp_path, 0.5)
    assert Checks(RunDir(tmp_path)).of(status(LaunchCheck(number=3, running=False), "Running")) is None


@pytest.mark.parametrize(("error", "why"), [("python3: not found", "python3: not found"), ("", "printed no result")])
def test_why_there_is_no_result(tmp_path: Path, error: str, why: str) -> None:
    found = Checks(RunDir(tmp_path)).of(status(LaunchCheck(number=1, running=False, error=error)))
    assert found is not None
    assert why in found.why


def test_a_link_to_elsewhere_is_no_result(tmp_path: Path) -> None:
    printed(tmp_path, 0.5)
    (tmp_path / "elsewhere").write_text('{"scores": {"fp32": 1.0}}')
    (tmp_path / CHECK_FILE).unlink()
    (tmp_path / CHECK_FILE).symlink_to(tmp_path / "elsewhere")
    found = Checks(RunDir(tmp_path)).of(status(LaunchCheck(number=1, running=False)))
    assert found is not None
    assert found.micros == {}


# -- links -------------------------------------------------------------------------------------------------------------

LINKING = LaunchCheck(number=3, running=False, linking=True)
OVER = LaunchCheck(number=3, running=False)
FAILED = LaunchCheck(number=3, running=False, links_error="no Python")
LINK = {"peer": 1, "bits": 5e9, "rtt_us": 80, "receiving": 0.25, "held": 0.9}
ALL = json.dumps({"number": 3, "port": 40000, "links": [LINK], "seconds": 1})


@pytest.mark.parametrize(
    ("check", "text", "links"),
    [
        (LINKING, "", LinksReport(PORT_COMES)),
        (LINKING, '{"number": 2, "port": 40000, "links": []}', LinksReport(PORT_COMES)),
        (LINKING, '{"number": 3, "port": 40000}', LinksReport(40000)),
        (LINKING, ALL, LinksReport(40000, True, [LinkReport(1, 5_000_000_000, 80, 250, 0, 900)])),
        (OVER, ALL, LinksReport(40000, True, [LinkReport(1, 5_000_000_000, 80, 250, 0, 900)])),
        (FAILED, "", LinksReport(NO_PORT, True, why="no Python")),
        (OVER, '{"number": 3, "port": 40000}', LinksReport(40000, True, why="it ended without a result")),
    ],
    ids=["it starts", "of another round", "waits", "measured", "ended", "no Python", "ended without a result"],
)
def test_how_far_the_links_are(tmp_path: Path, check: LaunchCheck, text: str, links: LinksReport) -> None:
    printed(tmp_path, 0.5)
    if text:
        linked(tmp_path, text)
    found = Checks(RunDir(tmp_path)).of(status(check))
    assert found is not None
    assert found.links == links


def test_each_step_is_news_once(tmp_path: Path) -> None:
    checks = Checks(RunDir(tmp_path))
    printed(tmp_path, 0.5)
    news = [checks.look(None), checks.look(status(LINKING)), checks.look(status(LINKING))]
    linked(tmp_path, '{"number": 3, "port": 40000}')
    news += [checks.look(status(LINKING)), checks.look(status(LINKING))]
    linked(tmp_path, ALL)
    news += [checks.look(status(LINKING)), checks.look(status(OVER))]
    assert news == [False, True, False, True, False, True, False]


@pytest.mark.parametrize(
    "text",
    [
        "[" * 5000,
        '{"number": 3, "port": 99999, "links": []}',
        '{"number": 3, "port": -1}',
        '{"number": 3, "port": "x"}',
        "not JSON",
    ],
)
def test_a_file_of_links_that_cannot_be_is_none(tmp_path: Path, text: str) -> None:
    printed(tmp_path, 0.5)
    linked(tmp_path, text)
    found = Checks(RunDir(tmp_path)).of(status(OVER))
    assert found is not None
    assert found.links == NONE


def test_a_hostile_file_of_links_is_cut(tmp_path: Path) -> None:
    printed(tmp_path, 0.5)
    link = {"peer": 1, "bits": 1e300, "rtt_us": -5, "receiving": 7.5, "sending": -1, "held": 1e9, "why": "x" * 999}
    linked(tmp_path, json.dumps({"number": 3, "port": 40000, "links": [link] * 99}))
    found = Checks(RunDir(tmp_path)).of(status(OVER))
    assert found is not None
    assert found.links is not None
    assert found.links.links == [LinkReport(1, MOST_BITS, -1, 1000, 0, 1000, "x" * 256)] * MOST_LINKS


def smoked(smoke: LaunchCheck | None, state: State = "Running") -> LaunchStatus:
    return LaunchStatus(generation=2, dead_below=2, state=state, smoke=smoke)


def smoke_printed(folder: Path, rate: float) -> None:
    (folder / SMOKE_FILE).parent.mkdir(exist_ok=True)
    (folder / SMOKE_FILE).write_text(f'{{"backend": "falcon-launch", "scores": {{"fp32": {rate}}}}}')


def test_a_smoke_test_is_news_once_also_while_the_ranks_run_and_is_forgotten_after_a_while(tmp_path: Path) -> None:
    smoke, over = Smoke(RunDir(tmp_path)), smoked(LaunchCheck(number=3, running=False))
    smoke_printed(tmp_path, 0.5)
    assert not smoke.look(None, 10.0)
    assert not smoke.look(smoked(None), 10.0)
    assert not smoke.look(smoked(LaunchCheck(number=3, running=True)), 10.0)
    assert smoke.of(10.0) is None
    assert smoke.look(over, 10.0)
    assert not smoke.look(over, 11.0)
    found = CheckReport(3, backend="falcon-launch", micros={"fp32": 500_000})
    assert smoke.of(9.9 + REPORTED_SECONDS) == found
    assert smoke.of(10.0 + REPORTED_SECONDS) is None
    smoke_printed(tmp_path, 0.9)
    assert smoke.look(smoked(LaunchCheck(number=4, running=False)), 100.0)
    assert smoke.of(100.0) == CheckReport(4, backend="falcon-launch", micros={"fp32": 900_000})


@pytest.mark.parametrize(("error", "why"), [("ended by signal 9", "ended by signal 9"), ("", "printed no result")])
def test_a_smoke_test_without_a_result_says_why(tmp_path: Path, error: str, why: str) -> None:
    smoke = Smoke(RunDir(tmp_path))
    assert smoke.look(smoked(LaunchCheck(number=3, running=False, error=error)), 10.0)
    found = smoke.of(10.0)
    assert found is not None
    assert (found.number, found.micros) == (3, {})
    assert why in found.why
