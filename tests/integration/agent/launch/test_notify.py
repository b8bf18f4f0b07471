"""The wait for the launcher's files: real folders, watched by the kernel or not."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from falcon_agent.launch import notify as module
from falcon_agent.launch.notify import POLL_SECONDS, News

LONG = 30.0


def write(folder: Path, name: str = "status.json") -> None:
    fresh = folder / f"{name}.new"
    fresh.write_text("{}")
    fresh.rename(folder / name)


async def waited(news: News, seconds: float) -> float:
    begun = time.monotonic()
    await news.wait(seconds)
    return time.monotonic() - begun


async def test_a_file_that_appears_ends_the_wait(tmp_path: Path) -> None:
    with News(tmp_path) as news:
        waiting = asyncio.create_task(waited(news, LONG))
        await asyncio.sleep(0.1)
        write(tmp_path)
        assert await waiting < LONG / 2


async def test_what_was_written_between_two_waits_ends_the_next_alone(tmp_path: Path) -> None:
    with News(tmp_path) as news:
        await news.wait(0.05)
        write(tmp_path)
        write(tmp_path, "rings.json")
        assert await waited(news, LONG) < LONG / 2
        assert await waited(news, 0.3) >= 0.3


async def test_a_folder_that_is_not_there_yet_is_looked_at_often(tmp_path: Path) -> None:
    folder = tmp_path / "launch"
    with News(folder) as news:
        assert await waited(news, LONG) < LONG / 2
        folder.mkdir()
        write(folder)
        await news.wait(0.05)  # begins to watch
        assert await waited(news, 0.3) >= 0.3


async def test_without_a_watcher_the_folder_is_looked_at_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake stands for the kernel's limit of watchers a user: to reach it would disturb whatever else runs here."""

    def exhausted(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(module, "INotify", exhausted)
    with News(tmp_path) as news:
        assert POLL_SECONDS <= await waited(news, LONG) < LONG / 2
        assert await waited(news, 0.01) < LONG / 2
