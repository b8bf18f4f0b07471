"""What the handler of a signal raises is distinguished from an error of the work that it interrupts: real signals."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.unit.client_format import interruption


class PreemptedError(OSError):
    pass


def named(number: int, frame: object) -> None:
    raise PreemptedError("named")


def forgetful(number: int, frame: object) -> None:
    del frame
    raise PreemptedError("forgetful")


def outer(number: int, frame: object) -> None:
    forgetful(number, None)


class Handlers:
    def method(self, number: int, frame: object) -> None:
        forgetful(number, None)

    def __call__(self, number: int, frame: object) -> None:
        forgetful(number, None)


HANDLERS: dict[str, Callable[..., Any]] = {
    "function": named,
    "lambda": lambda *_: named(0, None),
    "without its frame": forgetful,
    "through another": outer,
    "method": Handlers().method,
    "object": Handlers(),
    "partial": partial(forgetful),
}


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
def test_what_a_handler_raises_is_known(handler: Callable[..., Any]) -> None:
    signal.signal(signal.SIGUSR1, handler)
    with pytest.raises(PreemptedError) as caught:
        signal.raise_signal(signal.SIGUSR1)
    assert interruption.of_a_handler(caught.value)


def test_a_handler_that_was_replaced_meanwhile_is_known_by_its_frame() -> None:
    signal.signal(signal.SIGUSR1, named)
    with pytest.raises(PreemptedError) as caught:
        signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    assert interruption.of_a_handler(caught.value)


def test_an_error_of_the_work_itself_is_none(tmp_path: Path) -> None:
    signal.signal(signal.SIGUSR1, named)
    for work in (lambda: (tmp_path / "absent").read_text(), lambda: os.open("/absent", os.O_RDONLY), lambda: int("x")):
        with pytest.raises((OSError, ValueError)) as caught:
            work()
        assert not interruption.of_a_handler(caught.value)
