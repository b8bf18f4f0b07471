"""The meeting of processes: by which addresses it is reached, and what becomes of the refused."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.unit.client_format import elastic_meeting

PATIENCE = 0.1
ROOT = Path(__file__).parents[3]
HANGING = """
import sys, time
from tests.unit.client_format import elastic_attendance as module
module.ENDING_SECONDS = 0.5
attendance = module.Attendance("127.0.0.1", int(sys.argv[1]), 3, lambda: None)
if sys.argv[2] == "1":
    attendance.end()
time.sleep(4)
"""


def enter(host: str, port: int, rank: int) -> socket.socket:
    connection = socket.create_connection((host, port), timeout=20)
    message = {"arrive": 0, "handle": f"handle {rank}", "progress": [], "has_state": False}
    for each in ({"enter": rank, "process": os.getpid() + rank}, message):
        connection.sendall(json.dumps(each).encode() + b"\n")
    return connection


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_meeting_is_reached_by_both_kinds_of_addresses(host: str) -> None:
    meeting = elastic_meeting.Meeting(1, PATIENCE)
    try:
        with enter(host, meeting.port, 0) as connection:
            assert json.loads(connection.makefile().readline())["group"] == 1
    except OSError as error:
        if host == "::1" and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            pytest.skip(f"this machine has no IPv6: {error}")
        raise
    finally:
        meeting.close()


def test_a_process_that_is_refused_is_reported_with_its_rank_and_number() -> None:
    refused: list[tuple[int, int]] = []
    meeting = elastic_meeting.Meeting(2, PATIENCE, lambda rank, process: refused.append((rank, process)))
    with enter("127.0.0.1", meeting.port, 0) as first, enter("127.0.0.1", meeting.port, 1) as hanging:
        lines = hanging.makefile()
        assert json.loads(first.makefile().readline())["group"] == 1
        arrival = {"arrive": 1, "handle": "again", "progress": [], "has_state": True}
        first.sendall(json.dumps(arrival).encode() + b"\n")
        heard = [json.loads(line) for line in lines]
    assert [next(iter(message)) for message in heard] == ["group", "renew", "refused"]
    assert refused == [(1, os.getpid() + 1)]
    meeting.close()


def test_strangers_who_enter_nothing_take_few_threads_of_the_training_pod() -> None:
    """Each connection has a thread, in a container whose processes and threads are counted."""
    meeting = elastic_meeting.Meeting(2, PATIENCE)
    before, strangers = threading.active_count(), 400
    with contextlib.ExitStack() as stack:
        for number in range(strangers):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", meeting.port), timeout=20))
            stranger.sendall(b"{}\n" * (number % 2))
        first = stack.enter_context(enter("127.0.0.1", meeting.port, 0))
        second = stack.enter_context(enter("127.0.0.1", meeting.port, 1))
        for connection in (first, second):
            assert json.loads(connection.makefile().readline())["group"] == 1
        assert threading.active_count() - before <= elastic_meeting.MOST_STRANGERS + 2 * 2 + 2
    meeting.close()


REFUSAL = b'{"refused": "Excluded"}\n'


@pytest.mark.parametrize(("says", "is_over", "code"), [(REFUSAL, False, 1), (REFUSAL, True, 0), (b"", False, 0)])
def test_a_process_without_a_place_that_hangs_ends_but_not_when_it_may_still_save(
    says: bytes, is_over: bool, code: int
) -> None:
    """The main thread sees nothing of the refusal: it evaluates for long, or saves behind the last step.

    A connection that only ends is no refusal: the first pod is done, and this one may save after an early end.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", HANGING, str(server.getsockname()[1]), str(int(is_over))]
        with subprocess.Popen(command, cwd=ROOT) as rank:
            connection, _ = server.accept()
            with connection:
                lines = connection.makefile()
                heard = [json.loads(lines.readline()) for _ in range(1 + is_over)]
                connection.sendall(says)
            assert rank.wait(timeout=30) == code
    assert heard[0] == {"enter": 3, "process": rank.pid}
