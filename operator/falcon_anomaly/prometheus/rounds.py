"""Ask all queries again and again, and hand on what belongs to ranks.

A question reaches back to the last window that was answered, a quarter of an hour at most: what Prometheus did not
answer while it was away comes later. A query without an answer pauses, longer each time. So a Prometheus that is away,
slow or wrong costs its own metrics alone, and is not asked without end.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import structlog

from falcon_anomaly.prometheus import client
from falcon_anomaly.queries.answers import QueryError, TooLargeError, decode
from falcon_anomaly.queries.joining import Joined, Known, Place, joined, places
from falcon_anomaly.queries.specification import PODS, Query, Specification, pods_query
from falcon_anomaly.series.board import WINDOW_SECONDS

EACH_WINDOWS: Final = 6  # between two questions of a query: agents send their windows as often
MOST_WINDOWS: Final = 90  # of a question: a quarter of an hour
LATE_SECONDS: Final = 15.0  # after a window's end until it is asked for: a scrape takes a while to be stored
LONGEST_PAUSE_SECONDS: Final = 600.0
MOST_PODS: Final = 500  # of a question about where they are
MOST_PLACE_QUESTIONS: Final = 10  # of a round, which is 5,000 pods
AGAIN_SECONDS: Final = 60.0  # after which a pod of which Prometheus knows nothing is asked for again
log = structlog.get_logger("falcon_anomaly")

Pods = Callable[[], Awaitable[Mapping[str, Known]]]
Take = Callable[[str, npt.NDArray[np.float64], Mapping[str, Joined]], Awaitable[None]]


class State(msgspec.Struct):
    """How a query has gone."""

    answers: bool = False
    ranks: int = 0  # with a series, in the newest answer
    unclear: int = 0  # pods whose series belong to no rank for certain, likewise
    failures: int = 0
    trouble: str = ""
    until: float = -math.inf  # the last window that was answered, s since 1970
    pause: float = 0.0  # seconds
    paused_until: float = -math.inf  # monotonic


class Rounds:
    """All queries of a specification.

    ``pods`` returns the pods whose series are held, by uid. ``take`` gets the board's name of a metric, when its
    windows ended on the monotonic clock [window], and the values, by the job's uid.
    """

    def __init__(self, specification: Specification, secrets: Path | None, pods: Pods, take: Take) -> None:
        self.states = {name: State() for name in (PODS, *(query.metric for query in specification.queries))}
        self._specification = specification
        self._secrets = secrets
        self._pods = pods
        self._take = take
        self._places: dict[str, Place] = {}
        self._missing: dict[str, float] = {}  # uids without a place: when they are asked for again, monotonic
        self._offset: float | None = None  # of the monotonic clock from that of the day

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            began = time.monotonic()
            pods = await self._pods()
            if pods:
                await self._round(pods)
            took = time.monotonic() - began
            # A Prometheus that takes long is asked for half of the time at most.
            await asyncio.sleep(max(WINDOW_SECONDS - took, took))

    async def _round(self, pods: Mapping[str, Known]) -> None:
        newest = math.floor((time.time() - LATE_SECONDS) / WINDOW_SECONDS) * WINDOW_SECONDS
        await self._find(pods, newest)
        where = {uid: place for uid, place in self._places.items() if uid in pods}
        for query in self._specification.queries:
            state = self.states[query.metric]
            due = newest - state.until >= EACH_WINDOWS * WINDOW_SECONDS
            if where and due and time.monotonic() >= state.paused_until:
                await self._attempt(query.metric, self._answered(query, newest, pods, where))

    async def _answered(self, query: Query, newest: float, pods: Mapping[str, Known], where: dict[str, Place]) -> None:
        state = self.states[query.metric]
        ends = _ends(state.until, newest)
        try:
            raw = await client.ask(self._specification.url, self._secrets, query.query, ends)
            series = await asyncio.to_thread(decode, raw, ends)
        except TooLargeError:
            state.until = newest  # a longer range would be larger still
            raise
        before = state.unclear
        found, state.unclear = await asyncio.to_thread(joined, query, series, pods, where)
        state.ranks = sum(len(each.ranks) for each in found.values())
        state.until = newest
        if state.unclear and not before:
            remedy = "aggregate in the query, or name a rankLabel that counts the ranks of a pod"
            log.warning("pods have several series of a query: " + remedy, query=query.metric, pods=state.unclear)
        await self._take(query.name, ends + self._clocks(), found)

    async def _find(self, pods: Mapping[str, Known], newest: float) -> None:
        """Ask where the pods are of which that is not known; a pod stays where it is."""
        now = time.monotonic()
        self._places = {uid: place for uid, place in self._places.items() if uid in pods}
        self._missing = {uid: again for uid, again in self._missing.items() if uid in pods}
        unknown = [uid for uid in pods if uid not in self._places and self._missing.get(uid, -math.inf) <= now]
        if not unknown or now < self.states[PODS].paused_until:
            return
        for first in range(0, min(len(unknown), MOST_PODS * MOST_PLACE_QUESTIONS), MOST_PODS):
            if not await self._attempt(PODS, self._located(pods, unknown[first : first + MOST_PODS], newest)):
                return

    async def _located(self, pods: Mapping[str, Known], uids: list[str], newest: float) -> None:
        query = pods_query(self._specification.pods, uids)
        ends = np.array([newest])
        raw = await client.ask(self._specification.url, self._secrets, query, ends)
        found = places(pods, await asyncio.to_thread(decode, raw, ends))
        self._places |= found
        again = time.monotonic() + AGAIN_SECONDS - 1.0
        self._missing |= {uid: again for uid in uids if uid not in found}
        state = self.states[PODS]
        state.ranks = sum(len(pods[uid].ranks) for uid in self._places if uid in pods)
        state.unclear = len(self._missing)
        if not self._places:
            raise QueryError(
                f"{self._specification.pods} shows none of {len(uids)} pods: does Prometheus scrape kube-state-metrics?"
                " Name the series in anomalies.prometheus.pods"
            )

    async def _attempt(self, name: str, doing: Awaitable[None]) -> bool:
        """Wait for an answer, and note how it went. Return whether there was one."""
        state = self.states[name]
        try:
            await doing
        except Exception as error:  # noqa: BLE001 - whatever a Prometheus does, the service goes on
            trouble = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            state.failures += 1
            if state.answers or not state.trouble:
                log.warning("a query of Prometheus has no answer that can be used", query=name, error=trouble)
            state.answers, state.trouble = False, trouble
            state.pause = min(LONGEST_PAUSE_SECONDS, max(2 * state.pause, WINDOW_SECONDS))
            state.paused_until = time.monotonic() + state.pause
            return False
        if state.trouble:
            log.info("a query of Prometheus is answered again", query=name)
        state.answers, state.trouble, state.pause = True, "", 0.0
        return True

    def _clocks(self) -> float:
        """Return the monotonic clock's offset from that of the day, which moves by whole windows alone.

        Otherwise a clock that is adjusted would fill a window of the board twice, or none.
        """
        offset = time.monotonic() - time.time()
        if self._offset is not None:
            offset = self._offset + round((offset - self._offset) / WINDOW_SECONDS) * WINDOW_SECONDS
        self._offset = offset
        return offset


def _ends(until: float, newest: float) -> npt.NDArray[np.float64]:
    """Return the ends of the windows that are asked for: those after ``until``, as many as a question may have."""
    count = MOST_WINDOWS if until == -math.inf else round((newest - until) / WINDOW_SECONDS)
    many = max(1, min(MOST_WINDOWS, count))
    return np.asarray(newest - WINDOW_SECONDS * np.arange(many - 1, -1, -1), np.float64)
