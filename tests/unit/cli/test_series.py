"""How the plugin shows a job's series: the table, heat maps in plain characters and in colour, and a picture."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kubectl_falcon.objects import Job, job_of
from kubectl_falcon.series import answer, page
from kubectl_falcon.series.answer import GAP, Answer, answer_of
from kubectl_falcon.series.picture import draw
from tests.stories.lifecycle.test_metrics_check import shown

PNG_SIZE = slice(16, 24)


async def seen() -> tuple[Job, Answer]:
    """Return a job and an answer as the plugin reads them from what the operator has written."""
    world, _ = await shown()
    body = {"metadata": msgspec.to_builtins(world.job.metadata), "status": msgspec.to_builtins(world.status)}
    found = answer_of(body)
    assert found is not None
    return job_of(body), found


async def test_the_table_has_the_worst_first_with_node_past_and_peers() -> None:
    job, found = await seen()
    text = page.page(job, found, 160, colour=False)
    head, cpu, memory, *_ = (line for line in text.splitlines() if re.match("METRIC|cpu  |memory", line))
    assert head.split() == ["METRIC", "RANK", "NODE", "VERDICT", "TIMES", "VALUE", "PEERS", "OWN", "PAST", "SINCE"]
    assert re.fullmatch(r"cpu +2 +node-c +differs +4.0x +0.31 cores +0.97 cores +0.96 cores +\S+ \(5 min\)", cpu)
    assert re.fullmatch(r"memory +0 +node-a +- +1.5x +3.5 GiB +1 GiB +- +\S+ \(5 min, over\)", memory)
    assert "2 verdicts" in text
    narrow = page.page(job, found, 50, colour=False).splitlines()
    assert max(len(line) for line in narrow) <= 50
    assert any(re.match("cpu +2 +node-c +differs +4.0x", line) for line in narrow), "the cut leaves what matters most"
    uncut = page.page(job, found, 50, colour=False, cut=False)
    assert cpu in uncut.splitlines(), "a pipe gets whole lines"


async def test_the_map_has_a_row_for_each_rank_in_plain_characters() -> None:
    job, found = await seen()
    lines = page.page(job, found, 80, colour=False).splitlines()
    rows = [line for line in lines if line.startswith("rank ")]
    assert rows == ["rank 0 |  .:|", "rank 1 | ?  |", "rank 2 |  #@|"]
    assert max(len(line) for line in lines) <= 80
    assert "\033" not in "".join(lines)
    coloured = page.page(job, found, 80, colour=True)
    assert "\033[48;5;160m@\033[0m" in coloured
    assert re.sub("\033\\[[0-9;]*m", "", coloured).splitlines() == lines, "without colour it says the same"


def a_map(ranks: int, columns: int) -> dict[str, Any]:
    return {"metric": "cpu", "ranks": list(range(ranks)), "rows": [columns * "4"] * ranks}


@pytest.mark.parametrize("width", [40, 80, 200])
async def test_a_narrow_terminal_gets_the_newest_columns(width: int) -> None:
    job, _ = await seen()
    body = {"status": {"metricsCheck": {"at": "2026-11-30T20:00:00Z", "columnSeconds": 120, "maps": [a_map(16, 60)]}}}
    found = answer_of(body)
    assert found is not None
    lines = page.page(job, found, width, colour=False).splitlines()
    assert max(len(line) for line in lines) <= width
    (row,) = {line.partition("|")[2] for line in lines if line.startswith("rank ")}
    assert len(row) == min(61, width - len("rank 15 |"))
    axis = next(line for line in lines if line.strip().endswith("20:00:00"))
    begin = 7200 - 120 * (60 - (len(row) - 1))
    assert axis.split()[0] == f"{(20 * 3600 - begin) // 3600:02}:{(20 * 3600 - begin) % 3600 // 60:02}:00"


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"metricsCheck": 7},
        {
            "metricsCheck": {
                "maps": 3,
                "worst": [1, "x", {"rank": "y", "score": 5}],
                "at": "no time",
                "columnSeconds": "x",
            }
        },
        {
            "metricsCheck": {
                "maps": [{"ranks": [0, "x"], "rows": [5, "01", "2"]}, {"ranks": [1, 2], "rows": ["0", "!0z"]}]
            }
        },
        {
            "metricsCheck": {
                "result": "\033[2Jclean",
                "maps": [{"metric": "\033[31m", "ranks": [1], "rows": ["\033[2J"]}],
            }
        },
        {"metricsCheck": {"maps": [a_map(1_000, 1_000)] * 100, "worst": [{"metric": "x" * 10_000}] * 1000}},
    ],
)
async def test_a_status_of_any_form_is_read_and_shown_within_bounds(status: dict[str, Any], tmp_path: Path) -> None:
    job, _ = await seen()
    found = answer_of({"status": status})
    if found is None:
        return
    text = page.page(job, found, 100, colour=False)
    assert "\033" not in text
    assert len(text) < 100 * (answer.MOST_ROWS + 5) * (answer.MOST_MAPS + 2)
    draw(job, found, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 0


async def test_the_picture_is_a_png_with_a_map_below_the_other(tmp_path: Path) -> None:
    job, found = await seen()
    draw(job, found, tmp_path / "one.png")
    two = Answer(**{**found.__dict__, "maps": found.maps * 2})
    draw(job, two, tmp_path / "two.png")
    one, both = ((tmp_path / name).read_bytes() for name in ("one.png", "two.png"))
    assert one.startswith(b"\x89PNG")
    sizes = [int.from_bytes(data[PNG_SIZE][4:]) for data in (one, both)]
    assert sizes[1] > sizes[0] + 100


def test_unknown_letters_are_gaps() -> None:
    found = answer_of({"status": {"metricsCheck": {"maps": [{"metric": "m", "ranks": [3], "rows": ["0.Z"]}]}}})
    assert found is not None
    assert found.maps[0].cells == ((0.0, GAP, GAP),)
