"""The model of a pause with programs that iterate, and ranks whose rings show what they did.

The agent's own chain finds in a rank's records what the rank knows of its iterations. Each call of an iteration has a
size of its own, so that the chain begins its cycles where the program does.
"""

from __future__ import annotations

import numpy as np

from falcon_core.recovery.probe.cut import Channel, Known
from falcon_core.signals.calls.iteration_counts import iteration_counts
from falcon_core.signals.rank.chain import RankChain
from falcon_core.wire.reporting.messages import Detection
from falcon_core.wire.ring import (
    COUNTER_DTYPE,
    POINT_TO_POINT,
    RECORD_DTYPE,
    CounterArray,
    Kind,
    Op,
    RecordArray,
    Traffic,
    counter_key,
)
from tests.unit.shim.pause_model import Model, projected
from tests.unit.shim.pause_rules import RankView

NS_PER_TICK = 10_000_000
WORLD = Channel("world")


class Iterating(Model):
    """Programs of ``length`` iterations after some other calls; ``extra``: by iteration, the extra calls before it."""

    def __init__(self, seed: int, ranks: int, blocking: bool, length: int, extra: dict[int, int] | None = None) -> None:
        self.extra = extra or {}
        self.bounds: list[
            list[tuple[int, int]]
        ] = []  # by rank and iteration: its first call, and the first call after it
        self.sizes: list[list[int]] = []  # by rank: of each call
        super().__init__(seed, ranks, blocking, length)
        self.now = 0
        self.point_to_point: list[dict[str, int]] = [{} for _ in range(ranks)]
        self.records: list[list[RecordArray]] = [[] for _ in range(ranks)]
        self.begun: list[RecordArray | None] = [None] * ranks
        self.chains = [RankChain(Detection()) for _ in range(ranks)]
        self.read = [0] * ranks

    def _programs(self, ranks: int, length: int) -> list[list[Channel]]:
        some = list(self.members)
        cycle = [*self.chance.choices(some, k=self.chance.randrange(4, 12)), WORLD]
        self.chance.shuffle(cycle)
        pieces = [(self.chance.choices(some, k=self.chance.randrange(8)), 1000)]
        for iteration in range(length):
            pieces.append((self.chance.choices(some, k=self.extra.get(iteration, 0)), 2000))
            pieces.append((cycle, 0))
        programs: list[list[Channel]] = [[] for _ in range(ranks)]
        self.bounds, self.sizes = [[] for _ in range(ranks)], [[] for _ in range(ranks)]
        for calls, base in pieces:
            for rank, part in enumerate(projected(calls, self.members, ranks)):
                if base == 0:
                    self.bounds[rank].append((len(programs[rank]), len(programs[rank]) + len(part)))
                programs[rank] += part
                self.sizes[rank] += [base + 1 + place for place in range(len(part))]
        return programs

    def tick(self) -> None:
        self.now += 1
        super().tick()
        for number, rank in enumerate(self.ranks):
            record = self.begun[number]
            if record is not None and not rank.inside:
                record["duration_ns"] = self.now * NS_PER_TICK - record["t_start_ns"] if rank.blocking else 0
                record["seq"] = len(self.records[number]) + 1
                self.records[number].append(record)
                self.begun[number] = None

    def enter(self, number: int, channel: Channel) -> None:
        super().enter(number, channel)
        rank = self.ranks[number]
        record: RecordArray = np.zeros(1, dtype=RECORD_DTYPE)
        comm = self._comm(channel)
        record["t_start_ns"] = self.now * NS_PER_TICK
        record["bytes"] = self.sizes[number][rank.at - 1]
        record["kind"] = Kind.BLOCKING if rank.blocking else Kind.ENQUEUED
        if channel.source < 0:
            record["comm"], record["op"], record["peer_or_root"] = comm, Op.ALL_REDUCE, -1
            record["comm_seq"] = rank.entered[channel] - 1
        else:
            sends = channel.source == number
            point_to_point = self.point_to_point[number]
            record["comm"] = comm | POINT_TO_POINT
            record["comm_seq"] = point_to_point.get(channel.communicator, 0)
            point_to_point[channel.communicator] = point_to_point.get(channel.communicator, 0) + 1
            record["op"] = Op.SEND if sends else Op.RECV
            record["peer_or_root"] = channel.destination if sends else channel.source
        self.begun[number] = record

    def known(self) -> dict[int, Known | None]:
        """Return what every rank's ring shows of its iterations now."""
        return {number: self._known(number) for number in range(len(self.ranks))}

    def at_start(self) -> dict[int, bool]:
        for number in range(len(self.ranks)):
            self._read(number)
        return {number: chain.at_start for number, chain in enumerate(self.chains)}

    def iterations_done(self) -> set[int | None]:
        """Return how many iterations the ranks have done; None stands for a rank that is inside an iteration."""
        return {
            next(
                (
                    done
                    for done, (before, after) in enumerate(
                        zip([(0, 0), *self.bounds[number]], [*self.bounds[number], (10**9, 0)], strict=True)
                    )
                    if before[1] <= rank.at <= after[0]
                ),
                None,
            )
            for number, rank in enumerate(self.ranks)
        }

    def _read(self, number: int) -> None:
        fresh = self.records[number][self.read[number] :]
        if fresh:
            self.chains[number].feed(np.concatenate(fresh))
            self.read[number] += len(fresh)

    def _known(self, number: int) -> Known | None:
        self._read(number)
        whole = self.chains[number].newest_whole
        if whole is None:
            return None
        cycle = np.concatenate([self.records[number][record] for record in whole.calls.numbers.tolist()])
        keys = {self._key(number, channel): channel for channel in self.members if number in self.members[channel]}
        found = iteration_counts(cycle, self._counters(number, keys))
        if found is None:
            return None
        return Known(
            {keys[key]: calls for key, calls in found.starts.items()},
            {keys[key]: calls for key, calls in found.calls.items()},
        )

    def _counters(self, number: int, keys: dict[int, Channel]) -> CounterArray:
        counters: CounterArray = np.zeros(len(keys), dtype=COUNTER_DTYPE)
        counters["key"] = list(keys)
        counters["entered"] = [self.ranks[number].entered.get(channel, 0) for channel in keys.values()]
        return counters

    def _comm(self, channel: Channel) -> int:
        return 1 + sorted({existing.communicator for existing in self.members}).index(channel.communicator)

    def _key(self, number: int, channel: Channel) -> int:
        if channel.source < 0:
            return counter_key(self._comm(channel), Traffic.COLLECTIVE)
        if channel.source == number:
            return counter_key(self._comm(channel), Traffic.SEND, channel.destination)
        return counter_key(self._comm(channel), Traffic.RECV, channel.source)


class FromAnyone(Model):
    """A model in which rank 0 receives from any sender, and whoever sends to rank 0 goes on at once."""

    def _programs(self, ranks: int, length: int) -> list[list[Channel]]:
        self.members |= {Channel("world", sender, 0): (sender, 0) for sender in range(1, ranks)}
        programs = super()._programs(ranks, length)
        programs[0] = [ANYONE if channel.destination == 0 else channel for channel in programs[0]]
        return programs

    def enter(self, number: int, channel: Channel) -> None:
        if channel != ANYONE:
            super().enter(number, channel)

    def blocks(self, number: int, channel: Channel) -> bool:
        if channel != ANYONE:
            return channel.destination != 0 and super().blocks(number, channel)
        arrived = [
            candidate
            for candidate in self.members
            if candidate.destination == 0
            and self.ranks[candidate.source].entered.get(candidate, 0) > self.ranks[0].entered.get(candidate, 0)
        ]
        if arrived:
            super().enter(0, self.chance.choice(arrived))
        return not arrived

    def view(self, number: int) -> RankView:
        rank = self.ranks[number]
        anyone = rank.inside and rank.calls[rank.at - 1] == ANYONE
        return RankView(
            dict(rank.entered),
            int(rank.inside and not anyone),
            rank.waiting,
            False,
            {"world": 1} if anyone else {},
        )


ANYONE = Channel("world", -2, 0)
