"""Record, as a plugin of pytest, what the operator writes and orders in each story of the unit tests.

A line is a call of the small world's API server or bus: the method, and its arguments as JSON.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.world.fakes import FakeBus, FakeKube

_lines: list[str] = []
_READS = ("get_", "list_", "nodes", "reports")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--records", type=Path, required=True, help="the folder for the records")


def pytest_configure(config: pytest.Config) -> None:
    for owner in (FakeKube, FakeBus):
        for name, method in list(vars(owner).items()):
            if inspect.isfunction(method) and not name.startswith(("_", *_READS)):
                setattr(owner, name, _recorded(method))


def _recorded(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: object, *arguments: object, **named: object) -> object:
        _lines.append(f"{method.__name__} {_text(arguments)} {_text(named)}")
        return method(self, *arguments, **named)

    return call


def _text(value: object) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=repr, order="sorted").decode()
    except TypeError:  # a map by number cannot be ordered
        return msgspec.json.encode(value, enc_hook=repr).decode()


@pytest.fixture(autouse=True)
def _story(request: pytest.FixtureRequest) -> Iterator[None]:
    _lines.clear()
    yield
    if not _lines:
        return
    node = request.node
    folder: Path = request.config.getoption("--records")
    folder.mkdir(parents=True, exist_ok=True)
    # The file's name keeps tests of one name apart. Its folder is left out, because files move between folders.
    name = f"{node.path.stem}-{node.name}"
    if len(name) >= 150:  # too long for a file's name
        name = name[:150] + hashlib.sha256(name.encode()).hexdigest()[:8]
    (folder / f"{name.replace('/', '_')}.txt").write_text("\n".join(_lines) + "\n")
