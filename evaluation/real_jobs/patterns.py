"""The patterns: healthy jobs and faults.

Which combinations: each kind of job has healthy patterns and stragglers of 1.3, 1.5 and 2 ×; what happens over time
(ramps, stairs, flapping, steps of the job's own) runs on the kind that it is usual on; calls that return when they are
enqueued (NCCL) run on a pattern of each family: constant, sizes that vary, pipeline, work that moves, straggler, link.
"""

from __future__ import annotations

from typing import Final

from evaluation.real_jobs import effects as does
from evaluation.real_jobs.scene import Calls, Kind, Pattern

_HEALTHY: Final = (
    Pattern(name="constant", kind="data parallel"),
    Pattern(name="constant 3D", kind="3D"),
    Pattern(name="gradient accumulation", kind="accumulating"),
    Pattern(name="recommendation model", kind="recommendation"),
    Pattern(name="dropless experts", kind="dropless experts"),
    Pattern(name="packed sequences", kind="packed sequences"),
    Pattern(name="variable-length pipeline", kind="variable pipeline"),
    Pattern(name="batches by length", kind="packed sequences", effects=(does.lengths_of_batches(0.2),)),
    Pattern(
        name="batch ramp-up", kind="accumulating", effects=(does.steps_of_microbatches((0, 2), (400, 3), (800, 4)),)
    ),
    Pattern(name="batch ramp-up 3D", kind="3D", effects=(does.steps_of_microbatches((0, 4), (400, 6), (800, 8)),)),
    Pattern(name="several micro-batch counts", kind="3D", effects=(does.several_counts((6, 7, 8), 10),)),
    Pattern(name="curriculum", kind="packed sequences", effects=(does.steps_of_length((500, 1.25), (1000, 1.6)),)),
    Pattern(name="curriculum 3D", kind="3D", effects=(does.steps_of_length((500, 1.25), (1000, 1.6)),)),
    Pattern(name="everybody +20 %", kind="data parallel", effects=(does.everybody(500, 1.2),)),
    Pattern(
        name="everybody +20 %, then a blip",
        kind="data parallel",
        effects=(does.everybody(500, 1.2), does.blip(900, 12, 1.5)),
    ),
    Pattern(name="everybody −15 %", kind="3D", effects=(does.everybody(500, 0.85, settle=20),)),
    Pattern(name="tide of 8 %", kind="data parallel", effects=(does.tide(0.08, 1000),)),
    Pattern(name="upload each 100", kind="data parallel", effects=(does.uploads(100, 15, 1.25),)),
    Pattern(name="upload each 100, 3D", kind="3D", effects=(does.uploads(100, 15, 1.25),)),
    Pattern(name="rank 0 saves each 100", kind="data parallel", effects=(does.first_rank_saves(100, 15, 1.4),)),
    Pattern(name="cold cache each epoch", kind="data parallel", effects=(does.cold_epochs(250, 30, 1.6),)),
    Pattern(name="evaluation each 150", kind="data parallel", effects=(does.evaluations(150, 20.0),)),
    Pattern(name="evaluation each 150, experts", kind="dropless experts", effects=(does.evaluations(150, 20.0),)),
    Pattern(name="checkpoint pause each 100", kind="3D", effects=(does.pauses(100, 8.0),)),
    Pattern(name="data loader hiccups", kind="data parallel", effects=(does.hiccups(0.003, 1.8),)),
    Pattern(name="garbage collection", kind="accumulating", effects=(does.collections(60, 1.4),)),
    Pattern(name="hot expert moves", kind="dropless experts", effects=(does.hot_expert(1.5, 300, 200),)),
    Pattern(name="hot expert moves, padded", kind="padded experts", effects=(does.hot_expert(1.5, 300, 200),)),
    Pattern(name="work wanders", kind="packed sequences", effects=(does.wandering_work(0.08, 40),)),
    Pattern(name="heavy last stage", kind="3D", effects=(does.uneven_stages(1.4),)),
    Pattern(name="busy rank 0", kind="data parallel", effects=(does.busy_first_rank(1.15),)),
    Pattern(name="warm-up", kind="data parallel", effects=(does.warm_up(60, 2.0),)),
    Pattern(name="warm-up 3D", kind="3D", effects=(does.warm_up(60, 2.0),)),
    Pattern(name="noisy neighbours", kind="data parallel", effects=(does.neighbours(0.01, 1.3, (3, 15)),)),
    Pattern(name="constant, NCCL", kind="data parallel", calls="Enqueued"),
    Pattern(name="recommendation model, NCCL", kind="recommendation", calls="Enqueued"),
    Pattern(name="variable-length pipeline, NCCL", kind="variable pipeline", calls="Enqueued"),
    Pattern(
        name="hot expert moves, NCCL",
        kind="dropless experts",
        calls="Enqueued",
        effects=(does.hot_expert(1.5, 300, 200),),
    ),
    Pattern(name="curriculum, NCCL", kind="3D", calls="Enqueued", effects=(does.steps_of_length((500, 1.3)),)),
)

_CALLS: Final[tuple[tuple[Calls, str], ...]] = (("Blocking", ""), ("Enqueued", ", NCCL"))

_RHYTHMS: Final = (
    Pattern(
        name="rank 0 saves in one iteration of 100",
        kind="data parallel",
        effects=(does.first_rank_saves(100, 1, 20.0),),
    ),
    Pattern(name="evaluation each 200", kind="data parallel", effects=(does.evaluations(200, 20.0),)),
    Pattern(name="heavy-tailed data loading", kind="data parallel", effects=(does.heavy_tails(0.05),)),
    Pattern(name="growing garbage collection", kind="data parallel", effects=(does.growing_collections(60, 1.0),)),
    *(
        Pattern(name=f"{name}{suffix}", kind="data parallel", calls=calls, iterations=iterations, effects=(effect,))
        for calls, suffix in _CALLS
        for name, iterations, effect in (
            ("sawtooth of 30 % each 400", 2400, does.sawtooth(0.3, 400)),
            ("images of several scales", 2400, does.scales((0.7, 0.85, 1.0, 1.15, 1.3), 10)),
            ("packing with hidden lengths", 1500, does.hidden_lengths(0.2)),
        )
    ),
)

_KINDS: Final[tuple[Kind, ...]] = (
    "data parallel",
    "accumulating",
    "recommendation",
    "dropless experts",
    "packed sequences",
    "3D",
    "variable pipeline",
)

_CALLS_IN_PASSES: Final[tuple[Kind, ...]] = ("3D", "packed sequences", "padded experts")

_STRAGGLERS: Final = tuple(
    Pattern(name=f"straggler {factor} ×, {kind}", kind=kind, iterations=1100, faults=(does.straggler(factor),))
    for kind in _KINDS
    for factor in (1.3, 1.5, 2.0)
)

_PULSES: Final = tuple(
    Pattern(
        name=f"pulses of {factor} ×, 1 in {every}{suffix}",
        kind="data parallel",
        calls=calls,
        iterations=1100,
        faults=(does.pulses(factor, every),),
    )
    for calls, suffix in _CALLS
    for factor in (3, 6, 40)
    for every in (2, 5, 10)
)

_CHANGES_OF_CALLS: Final = tuple(
    Pattern(
        name=f"straggler 1.5 × {when} 4 → {count} micro-batches, {kind}{suffix}",
        kind=kind,
        calls=calls,
        effects=(does.steps_of_microbatches((0, 4), (500, count)),),
        faults=(does.straggler(1.5, onset=500 + after),),
    )
    for kind in _CALLS_IN_PASSES
    for calls, suffix in _CALLS
    for count in (8, 6)
    for after, when in ((-100, "before"), (0, "at"), (80, "80 after"), (400, "400 after"))
)

_ROUNDS: Final[tuple[Kind, ...]] = ("rounds of 20 steps", "rounds of 50 steps", "rounds of 80 steps")

_HEALTHY_ROUNDS: Final = tuple(
    Pattern(name=f"{kind}{suffix}", kind=kind, calls=calls) for kind in _ROUNDS for calls, suffix in _CALLS
)

# A round of 20 steps is found as the iteration, and takes eight seconds: the agents have to know the healthy one first.
_SLOW_ROUNDS: Final = tuple(
    Pattern(
        name=f"straggler {factor} ×, {kind}{suffix}",
        kind=kind,
        calls=calls,
        iterations=3000 if kind == "rounds of 20 steps" else 1500,
        faults=(does.straggler(factor, onset=1600 if kind == "rounds of 20 steps" else does.ONSET),),
    )
    for kind in _ROUNDS
    for calls, suffix in _CALLS
    for factor in (1.3, 1.5)
)

_OVERLAPPED: Final[tuple[Kind, ...]] = ("overlapped DDP", "overlapped FSDP", "shallow FSDP")

_HEALTHY_OVERLAPPED: Final = tuple(
    Pattern(
        name=f"{kind}, a rank slower by 4 %{suffix}", kind=kind, calls=calls, effects=(does.slower_by_nature(3, 1.04),)
    )
    for kind in _OVERLAPPED
    for calls, suffix in _CALLS
)

_SLOW_OVERLAPPED: Final = tuple(
    Pattern(
        name=f"straggler {factor} ×, {kind}{when}{suffix}",
        kind=kind,
        calls=calls,
        iterations=700,
        faults=(does.straggler(factor, onset=onset),),
    )
    for kind in _OVERLAPPED
    for calls, suffix in _CALLS
    for onset, when in ((does.ONSET, ""), (0, " from the first iteration"))
    for factor in (1.3, 1.5, 2.0)
)

_LIGHTER: Final = tuple(
    Pattern(
        name=f"straggler {factor} × while all work becomes lighter{suffix}",
        kind="much communication",
        calls=calls,
        iterations=700,
        effects=(does.everybody(does.ONSET, 0.9),),
        faults=(does.straggler(factor),),
    )
    for calls, suffix in _CALLS
    for factor in (1.5, 2.0)
)

_UNSEEN: Final = (
    *(Pattern(name=f"constant, {kind}", kind=kind) for kind in ("store barrier", "file lock")),
    Pattern(name="everybody sleeps", kind="store barrier, slept", effects=(does.everybody(does.ONSET, 2.5),)),
    Pattern(name="everybody computes longer", kind="store barrier", effects=(does.everybody(does.ONSET, 2.5),)),
    *(
        Pattern(name=f"straggler {factor} ×, {kind}", kind=kind, iterations=700, faults=(does.straggler(factor),))
        for kind, factor in (
            ("store barrier", 2.0),
            ("store barrier, slept", 8.0),
            ("file lock", 12.0),
            ("file lock, slept", 12.0),
            ("file lock in order, slept", 12.0),
        )
    ),
)

_FAULTS: Final = (
    *_SLOW_ROUNDS,
    Pattern(name="slow node, rounds of 50 steps", kind="rounds of 50 steps", faults=(does.slow_node(1.5),)),
    Pattern(
        name="two at once, rounds of 50 steps",
        kind="rounds of 50 steps",
        faults=(does.straggler(1.5), does.straggler(1.6)),
    ),
    Pattern(name="slow from the first iteration", kind="data parallel", faults=(does.straggler(1.4, onset=0),)),
    Pattern(name="slow from the first iteration, 3D", kind="3D", faults=(does.straggler(1.9, onset=0),)),
    Pattern(name="ramp +50 % over 2 000", kind="data parallel", iterations=3500, faults=(does.ramp(0.5, 2000),)),
    Pattern(name="ramp +50 % over 2 000, 3D", kind="3D", iterations=3500, faults=(does.ramp(0.5, 2000),)),
    Pattern(name="ramp +100 % over 5 000", kind="data parallel", iterations=6500, faults=(does.ramp(1.0, 5000),)),
    Pattern(name="stairs +8 % each 300", kind="data parallel", iterations=2600, faults=(does.stairs(0.08, 300, 6),)),
    Pattern(
        name="stairs +8 % each 300, experts",
        kind="dropless experts",
        iterations=2600,
        faults=(does.stairs(0.08, 300, 6),),
    ),
    Pattern(name="flapping", kind="data parallel", faults=(does.flapping(1.5, 0.3, 50),)),
    Pattern(name="flapping slowly", kind="data parallel", faults=(does.flapping(1.5, 0.3, 200),)),
    Pattern(
        name="near the threshold", kind="data parallel", iterations=2000, faults=(does.near_threshold(1.13, 1.22, 60),)
    ),
    Pattern(
        name="pulses of 6 ×, 1 in 5 at random",
        kind="3D",
        iterations=1100,
        faults=(does.pulses(6.0, 5, regular=False),),
    ),
    Pattern(name="slow node", kind="data parallel", faults=(does.slow_node(1.5),)),
    Pattern(name="two at once", kind="data parallel", faults=(does.straggler(1.5), does.straggler(1.6))),
    Pattern(
        name="two, one after the other", kind="data parallel", faults=(does.straggler(1.5), does.straggler(1.5, 560))
    ),
    Pattern(name="two, one after the other, 3D", kind="3D", faults=(does.straggler(1.6), does.straggler(1.6, 700))),
    *(
        Pattern(
            name=f"straggler 1.4 ×, packing with hidden lengths{suffix}",
            kind="data parallel",
            calls=calls,
            effects=(does.hidden_lengths(0.2),),
            faults=(does.straggler(1.4),),
        )
        for calls, suffix in _CALLS
    ),
    Pattern(name="slow link", kind="data parallel", faults=(does.slow_link(4.0),)),
    Pattern(name="slow link, 3D", kind="3D, four replicas", faults=(does.slow_link(5.0),)),
    Pattern(
        name="straggler 1.3 × after a curriculum step",
        kind="packed sequences",
        effects=(does.steps_of_length((300, 1.3)),),
        faults=(does.straggler(1.3, onset=700),),
    ),
    Pattern(
        name="straggler 1.3 × after everybody +20 %",
        kind="data parallel",
        effects=(does.everybody(300, 1.2),),
        faults=(does.straggler(1.3, onset=700),),
    ),
    Pattern(
        name="straggler 1.5 × after a batch step, 3D",
        kind="3D",
        effects=(does.steps_of_microbatches((0, 6), (300, 8)),),
        faults=(does.straggler(1.5, onset=700),),
    ),
    Pattern(
        name="straggler 1.5 × beside uploads",
        kind="data parallel",
        effects=(does.uploads(100, 15, 1.25),),
        faults=(does.straggler(1.5),),
    ),
    Pattern(
        name="straggler 1.8 × beside a hot expert",
        kind="dropless experts",
        effects=(does.hot_expert(1.5, 300, 200),),
        faults=(does.straggler(1.8, onset=600),),
    ),
    Pattern(
        name="straggler 1.5 ×, batches by length",
        kind="packed sequences",
        effects=(does.lengths_of_batches(0.2),),
        faults=(does.straggler(1.5),),
    ),
    Pattern(name="straggler 1.5 ×, NCCL", kind="data parallel", calls="Enqueued", faults=(does.straggler(1.5),)),
    Pattern(
        name="straggler 1.5 ×, recommendation, NCCL",
        kind="recommendation",
        calls="Enqueued",
        faults=(does.straggler(1.5),),
    ),
    Pattern(
        name="straggler 1.5 ×, variable pipeline, NCCL",
        kind="variable pipeline",
        calls="Enqueued",
        faults=(does.straggler(1.5),),
    ),
    Pattern(name="slow link, NCCL", kind="data parallel", calls="Enqueued", faults=(does.slow_link(4.0),)),
)

PATTERNS: Final = {
    pattern.name: pattern
    for pattern in (
        *_HEALTHY,
        *_HEALTHY_ROUNDS,
        *_HEALTHY_OVERLAPPED,
        *_SLOW_OVERLAPPED,
        *_LIGHTER,
        *_UNSEEN,
        *_RHYTHMS,
        *_STRAGGLERS,
        *_PULSES,
        *_CHANGES_OF_CALLS,
        *_FAULTS,
    )
}

FULL: Final = (
    "constant 3D",
    "recommendation model",
    "dropless experts",
    "packed sequences",
    "variable-length pipeline",
    "batch ramp-up",
    "curriculum 3D",
    "everybody +20 %, then a blip",
    "upload each 100",
    "cold cache each epoch",
    "evaluation each 150",
    "hot expert moves",
    "hot expert moves, padded",
    "noisy neighbours",
    "warm-up",
    "variable-length pipeline, NCCL",
    "straggler 1.3 ×, data parallel",
    "straggler 1.5 ×, recommendation",
    "straggler 1.5 ×, dropless experts",
    "straggler 1.5 ×, variable pipeline",
    "slow from the first iteration",
    "ramp +50 % over 2 000",
    "stairs +8 % each 300",
    "flapping",
    "near the threshold",
    "two, one after the other",
    "slow link, 3D",
    "straggler 1.3 × after a curriculum step",
    "straggler 1.8 × beside a hot expert",
    "straggler 1.5 × beside uploads",
    "straggler 1.5 ×, NCCL",
    "straggler 1.5 ×, recommendation, NCCL",
)
"""What ``--full`` plays at 16 ranks: each family once or twice, the weak ones among them."""

LARGE: Final = (
    "constant 3D",
    "variable-length pipeline",
    "hot expert moves",
    "everybody +20 %, then a blip",
    "straggler 1.5 ×, variable pipeline",
    "slow link, 3D",
    "straggler 1.8 × beside a hot expert",
    "straggler 1.5 ×, NCCL",
)
"""What ``--full`` plays at 128 ranks."""

CHECKED: Final = (
    "constant 3D",
    "recommendation model",
    "dropless experts",
    "packed sequences",
    "variable-length pipeline",
    "batches by length",
    "batch ramp-up",
    "curriculum 3D",
    "everybody +20 %",
    "everybody +20 %, then a blip",
    "upload each 100",
    "cold cache each epoch",
    "evaluation each 150",
    "garbage collection",
    "hot expert moves",
    "noisy neighbours",
    "warm-up",
    "recommendation model, NCCL",
    "straggler 1.3 ×, data parallel",
    "straggler 1.5 ×, recommendation",
    "straggler 1.5 ×, dropless experts",
    "straggler 1.5 ×, packed sequences",
    "straggler 1.5 ×, variable pipeline",
    "slow from the first iteration",
    "stairs +8 % each 300",
    "flapping",
    "two, one after the other",
    "slow link",
    "straggler 1.3 × after everybody +20 %",
    "straggler 1.5 ×, NCCL",
)
"""What ``--check`` plays: one of each family; about three minutes of CPU time."""
