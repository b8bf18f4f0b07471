"""Ranks, their library and a coordinator in one thread: a model on which the consistent pause can be run often.

A program is a random global sequence of collectives and transfers, projected on the ranks, so that it cannot deadlock
by itself. Two libraries: *blocking*, as Gloo (a call returns when all its members have entered it), and *enqueuing*, as
NCCL (a call returns at once; each rank's device runs its queue in order, an entry when all members' devices have come
to it). What is concurrent in reality happens in random order here: between a rank's look at the gate and its count,
between the coordinator's looks at two ranks, and between its decision and the new table.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

from falcon_core.recovery.probe.cut import Known
from tests.unit.shim import pause_rules as pause
from tests.unit.shim.pause_rules import Channel, Pause, Phase, RankView

DEADLINE_TICKS = 20_000


class Rank:
    """A process that runs its part of the program."""

    def __init__(self, calls: Sequence[Channel], blocking: bool) -> None:
        self.calls = calls
        self.blocking = blocking
        self.at = 0
        self.passed = False  # beyond the gate, not counted yet
        self.inside = False  # of a call that blocks
        self.waiting = False
        self.entered: dict[Channel, int] = {}
        self.queue: deque[tuple[Channel, int]] = deque()  # enqueued, not run

    @property
    def done(self) -> bool:
        return self.at == len(self.calls) and not self.inside

    def view(self) -> RankView:
        return RankView(dict(self.entered), int(self.inside), self.waiting, False)


class Model:
    """All ranks and the table of targets as they see it; None: the gates are open."""

    def __init__(self, seed: int, ranks: int, blocking: bool, length: int = 200) -> None:
        self.chance = random.Random(seed)
        self.members = _channels(self.chance, ranks)
        self.ranks = [Rank(calls, blocking) for calls in self._programs(ranks, length)]
        self.table: dict[int, dict[Channel, int]] | None = None

    def _programs(self, ranks: int, length: int) -> list[list[Channel]]:
        return projected(self.chance.choices(list(self.members), k=length), self.members, ranks)

    def tick(self) -> None:
        """Let one rank or one device take one step."""
        number = self.chance.randrange(len(self.ranks))
        self._run_device(number)
        rank = self.ranks[number]
        if rank.inside:
            channel = rank.calls[rank.at - 1]
            rank.inside = self.blocks(number, channel)
        elif rank.passed:
            channel = rank.calls[rank.at]
            rank.at += 1
            rank.passed, rank.inside = False, rank.blocking
            self.enter(number, channel)
        elif rank.at < len(rank.calls):
            rank.waiting = self._must_wait(number)
            rank.passed = not rank.waiting

    def enter(self, number: int, channel: Channel) -> None:
        """Let a rank begin a call."""
        rank = self.ranks[number]
        rank.entered[channel] = rank.entered.get(channel, 0) + 1
        if not rank.blocking:
            rank.queue.append((channel, rank.entered[channel]))

    def blocks(self, number: int, channel: Channel) -> bool:
        """Check whether the call that a rank is in still blocks: some member has not entered it yet."""
        calls = self.ranks[number].entered[channel]
        return any(self.ranks[peer].entered.get(channel, 0) < calls for peer in self.members[channel])

    def view(self, number: int) -> RankView:
        return self.ranks[number].view()

    def _must_wait(self, number: int) -> bool:
        if self.table is None:
            return False
        entered = self.ranks[number].entered
        return all(entered.get(channel, 0) >= calls for channel, calls in self.table[number].items())

    def _run_device(self, number: int) -> None:
        if not self.ranks[number].queue:
            return
        entry = self.ranks[number].queue[0]
        devices = [self.ranks[peer] for peer in self.members[entry[0]]]
        if all(device.queue and device.queue[0] == entry for device in devices):
            for device in devices:
                device.queue.popleft()

    def views(self) -> dict[int, RankView]:
        """View each rank in turn, while the other ranks go on."""
        seen = {}
        for number in range(len(self.ranks)):
            self.tick()
            seen[number] = self.view(number)
        return seen

    def write(self, state: Pause) -> None:
        for _ in range(self.chance.randrange(5)):
            self.tick()
        self.table = {number: pause.targets_of(state, number) for number in range(len(self.ranks))}
        for rank in self.ranks:
            rank.waiting = False  # a rank has to meet the new table


class Paused(msgspec.Struct, frozen=True):
    """The course of one pause."""

    pause: Pause
    ticks: int
    moved: int  # calls begun while the gates were closed
    undrained: int  # device work that never ran

    @property
    def phase(self) -> Phase:
        return self.pause.phase


def pause_once(model: Model, known: Mapping[int, Known | None] | None = None) -> Paused:
    """Close the gates, watch whether anything moves, let the devices drain, open the gates."""
    ticks = 0
    state = pause.begin(model.members, model.views(), DEADLINE_TICKS, 0, known)
    model.write(state)
    while state.phase is Phase.CLOSING:
        for _ in range(model.chance.randrange(1, 8)):
            model.tick()
        after = pause.step(state, model.views(), ticks)
        if after.targets != state.targets:
            model.write(after)
        state, ticks = after, ticks + 1
    moved = undrained = 0
    if state.phase is Phase.CLOSED:
        begun = sum(rank.at for rank in model.ranks)
        for _ in range(60 * len(model.ranks)):
            model.tick()
        while any(rank.queue for rank in model.ranks) and undrained < 10_000:
            model.tick()
            undrained += 1
        moved = sum(rank.at for rank in model.ranks) - begun
    model.table = None
    return Paused(state, ticks, moved, sum(len(rank.queue) for rank in model.ranks))


def projected(calls: Sequence[Channel], members: Mapping[Channel, tuple[int, ...]], ranks: int) -> list[list[Channel]]:
    """Return the part of each rank in a global sequence of calls."""
    return [[channel for channel in calls if rank in members[channel]] for rank in range(ranks)]


def run_to_end(model: Model, at_most: int = 200_000) -> bool:
    """Run the program, and check whether it ends by itself."""
    for _ in range(at_most):
        if all(rank.done and not rank.queue for rank in model.ranks):
            return True
        model.tick()
    return False


def _channels(chance: random.Random, ranks: int) -> dict[Channel, tuple[int, ...]]:
    groups = {"world": tuple(range(ranks))}
    for number in range(chance.randrange(4)):
        groups[f"group{number}"] = tuple(sorted(chance.sample(range(ranks), chance.randrange(2, ranks + 1))))
    ordered = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    return pause.channels(groups, {"world": chance.sample(ordered, chance.randrange(min(4, len(ordered)) + 1))})
