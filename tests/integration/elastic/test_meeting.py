"""The meeting of processes: by which addresses it is reached, and whom it reports as refused."""

from __future__ import annotations

import json
import os
import socket

import pytest

from tests.unit.client_format import elastic_meeting

PATIENCE = 0.1


def enter(host: str, port: int, rank: int) -> socket.socket:
    connection = socket.create_connection((host, port), timeout=20)
    message = {"arrive": 0, "handle": f"handle {rank}", "progress": [], "has_state": False}
    for each in ({"enter": rank, "process": os.getpid() + rank}, message):
        connection.sendall(json.dumps(each).encode() + b"\n")
    return connection


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_meeting_is_reached_by_both_kinds_of_addresses(host: str) -> None:
    meeting = elastic_meeting.Meeting(1, PATIENCE)
    with enter(host, meeting.port, 0) as connection:
        assert json.loads(connection.makefile().readline())["group"] == 1
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
