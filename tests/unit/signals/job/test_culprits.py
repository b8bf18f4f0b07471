"""Who causes a slowdown, according to the ranks' own reports."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from evaluation.culprits import real_jobs
from falcon_core.signals.job.culprits import RankView, Verdict, Wait, attribute_slowdown

MS = 1_000_000.0
HEALTHY = 100 * MS
ITERATION = 160 * MS


def view(
    rank: int, compute: float | None = 100, *, node: str = "", work: str = "", waits: Sequence[Wait] = ()
) -> RankView:
    """Return a rank whose healthy compute time is 100 ms; ``compute`` is in ms."""
    return RankView(
        rank=rank,
        iteration_ns=ITERATION,
        node=node or f"n{rank}",
        work=work,
        compute_ns=None if compute is None else compute * MS,
        healthy_compute_ns=HEALTHY,
        waits=tuple(waits),
    )


def wait(comm: str, members: tuple[int, ...], ms: float, *, p2p: bool = False) -> Wait:
    return Wait(comm=comm, members=members, excess_ns=ms * MS, p2p=p2p)


def blamed(verdicts: list[Verdict]) -> list[tuple[str, tuple[int, ...]]]:
    return [(verdict.kind, verdict.ranks) for verdict in verdicts]


def test_who_computes_longer_than_it_did_is_named_and_who_waits_is_not() -> None:
    everybody = (0, 1, 2, 3)
    views = [
        view(rank, 160 if rank == 2 else 100, waits=[wait("dp", everybody, 0 if rank == 2 else 60)])
        for rank in everybody
    ]
    assert blamed(attribute_slowdown(views, loss_ns=60 * MS)) == [("Computation", (2,))]
    assert attribute_slowdown(views, loss_ns=60 * MS)[0].ratio == pytest.approx(1.6)


def test_two_slow_ranks_of_different_degree_are_both_named_the_costlier_first() -> None:
    slow = {1: 160.0, 6: 130.0}
    assert blamed(attribute_slowdown([view(rank, slow.get(rank, 101)) for rank in range(8)], loss_ns=60 * MS)) == [
        ("Computation", (1,)),
        ("Computation", (6,)),
    ]


def test_more_work_for_everybody_is_nobodys_fault() -> None:
    assert attribute_slowdown([view(rank, 150 + rank) for rank in range(8)], loss_ns=50 * MS) == []


def test_waits_that_grew_with_everybodys_work_suspect_no_link() -> None:
    views = [
        view(0, 150, waits=[wait("0>1", (0, 1), 0, p2p=True)]),
        view(1, 150, waits=[wait("0>1", (0, 1), 40, p2p=True)]),
    ]
    assert attribute_slowdown(views, loss_ns=60 * MS) == []
    healthy = [replace(rank_view, compute_ns=HEALTHY) for rank_view in views]
    assert blamed(attribute_slowdown(healthy, loss_ns=60 * MS)) == [("Suspected", (0, 1))]


def test_all_ranks_of_a_node_slow_alike_are_the_node() -> None:
    views = [view(rank, 155 + rank if rank // 4 == 1 else 100, node=f"n{rank // 4}") for rank in range(16)]
    found = attribute_slowdown(views, loss_ns=60 * MS)
    assert blamed(found) == [("Computation", (4, 5, 6, 7))]
    assert found[0].node == "n1"


def test_a_group_whose_waits_for_each_other_are_not_seen_is_named_whole() -> None:
    groups = {rank: tuple(range(rank // 4 * 4, rank // 4 * 4 + 4)) for rank in range(16)}
    views = [
        view(rank, 160 if rank < 4 else 100, waits=[wait(f"tp{rank // 4}", groups[rank], 0)]) for rank in range(16)
    ]
    assert blamed(attribute_slowdown(views, loss_ns=60 * MS)) == [("Computation", (0, 1, 2, 3))]


def test_a_transfer_that_grew_for_all_members_is_the_link_though_others_wait_for_them() -> None:
    slow, fast = (0, 2), (1, 3)  # data-parallel groups; 0, 1 and 2, 3 are tensor-parallel
    views = [
        view(rank, waits=[wait("dp0", slow, 60 + rank), wait(f"tp{rank // 2}", (rank, rank + 1), 0)]) for rank in slow
    ] + [view(rank, waits=[wait("dp1", fast, 0), wait(f"tp{rank // 2}", (rank - 1, rank), 60)]) for rank in fast]
    found = attribute_slowdown(views, loss_ns=60 * MS)
    assert blamed(found) == [("Communication", slow)]
    assert found[0].comm == "dp0"


def test_a_slow_process_moves_data_slowly_too_and_its_communicator_is_not_blamed_besides() -> None:
    def views(growth: float) -> list[RankView]:
        return [
            view(rank, 135 if rank == 1 else 100, waits=[wait("dp", (0, 1, 2), growth + (0 if rank == 1 else 35))])
            for rank in range(3)
        ]

    assert blamed(attribute_slowdown(views(20), loss_ns=55 * MS)) == [("Computation", (1,))]
    assert blamed(attribute_slowdown(views(120), loss_ns=155 * MS)) == [("Communication", (0, 1, 2))]
    assert attribute_slowdown([view(0), view(1, waits=[wait("dp", (0, 1), 60)])], loss_ns=60 * MS) == []


def test_members_that_wait_at_different_calls_are_no_slow_transfer() -> None:
    parts = {0: (60.0, 0.0), 1: (0.0, 60.0)}
    views = [
        view(
            rank,
            waits=[Wait(comm="tp", members=(0, 1), excess_ns=60 * MS, parts_ns=tuple(part * MS for part in waited))],
        )
        for rank, waited in parts.items()
    ]
    assert attribute_slowdown(views, loss_ns=60 * MS) == []
    assert blamed(
        attribute_slowdown(
            [replace(rank_view, waits=(replace(rank_view.waits[0], parts_ns=()),)) for rank_view in views],
            loss_ns=60 * MS,
        )
    )


def test_slow_communicators_that_share_one_node_are_its_link() -> None:
    views = [
        view(rank, node=f"n{rank // 2}", waits=[wait(f"dp{rank % 2}", (rank % 2, rank % 2 + 2), 60)])
        for rank in range(4)
    ] + [
        view(rank, node=f"n{rank // 2}", waits=[wait(f"dp{rank % 2}x", (rank % 2 + 4, 6 + rank % 2), 0)])
        for rank in range(4, 8)
    ]
    views[2:4] = [
        replace(upper, waits=(*upper.waits, wait(f"pp{upper.rank}", (upper.rank, upper.rank + 2), 40)))
        for upper in views[2:4]
    ]
    views[4:6] = [
        replace(lower, waits=(*lower.waits, wait(f"pp{lower.rank - 2}", (lower.rank - 2, lower.rank), 40)))
        for lower in views[4:6]
    ]
    found = attribute_slowdown(views, loss_ns=60 * MS)
    assert [(verdict.kind, verdict.node, verdict.ranks) for verdict in found] == [("Communication", "n1", (2, 3))]


def test_without_compute_times_the_sink_of_the_wait_for_graph_is_named() -> None:
    chain = [
        view(0, None, waits=[wait("0>1", (0, 1), 0, p2p=True)]),
        view(1, None, waits=[wait("0>1", (0, 1), 60, p2p=True), wait("1>2", (1, 2), 0, p2p=True)]),
        view(2, None, waits=[wait("1>2", (1, 2), 60, p2p=True)]),
    ]
    assert blamed(attribute_slowdown(chain, loss_ns=60 * MS)) == [("Computation", (0,))]


def test_where_several_sinks_remain_the_group_is_named() -> None:
    views = [
        view(rank, None, waits=[wait(f"dp{rank % 2}", (rank % 2, rank % 2 + 2), 60 if rank > 1 else 0)])
        for rank in range(4)
    ]
    assert blamed(attribute_slowdown(views, loss_ns=60 * MS)) == [("Computation", (0, 1))]


def test_a_receiver_waits_and_its_sender_computes_as_ever_so_their_link_is_suspected() -> None:
    views = [
        view(0, waits=[wait("0>1", (0, 1), 0, p2p=True)]),
        view(1, waits=[wait("0>1", (0, 1), 60, p2p=True)]),
        view(2, waits=[wait("dp", (2, 3), 0)]),
        view(3, waits=[wait("dp", (2, 3), 0)]),
    ]
    assert blamed(attribute_slowdown(views, loss_ns=60 * MS)) == [("Suspected", (0, 1))]


def test_a_heavy_stage_is_an_imbalance_and_a_slow_rank_in_it_is_a_culprit() -> None:
    stages = [view(rank, 165 if rank // 4 == 3 else 100, work=str(rank // 4)) for rank in range(16)]
    assert blamed(attribute_slowdown(stages)) == [("Imbalance", (12, 13, 14, 15))]
    stages[13] = view(13, 260, work="3")
    assert blamed(attribute_slowdown(stages)) == [("Computation", (13,))]


@given(st.lists(st.floats(80, 120), min_size=2, max_size=40), st.floats(1, 100))
def test_noise_below_a_share_of_the_loss_names_nobody(compute: list[float], loss: float) -> None:
    views = [view(rank, 100 + (milliseconds - 100) * 0.005 * loss) for rank, milliseconds in enumerate(compute)]
    assert attribute_slowdown(views, loss_ns=loss * MS) == []


@given(st.integers(2, 40), st.data())
def test_the_verdict_does_not_depend_on_the_order_of_the_reports(ranks: int, data: st.DataObject) -> None:
    slow = data.draw(st.integers(0, ranks - 1))
    views = [view(rank, 160 if rank == slow else 100 + rank % 3) for rank in range(ranks)]
    assert blamed(attribute_slowdown(data.draw(st.permutations(views)), loss_ns=60 * MS)) == [("Computation", (slow,))]


@pytest.mark.skipif(not (real_jobs.DATA / "stragglers").is_dir(), reason=f"no public data at {real_jobs.DATA}")
@pytest.mark.parametrize("job", ["AR", "ST"])
@pytest.mark.parametrize("stages", [True, False], ids=["stages declared", "distinguished by the calls"])
def test_two_production_jobs_name_the_slow_worker_in_every_step_and_the_heavy_stage_in_none(
    job: str, stages: bool
) -> None:
    steps = real_jobs.load(job)
    assert len(steps) > 30
    for step in steps:
        assert (
            real_jobs.named(step, attribute_slowdown(real_jobs.views(step, stages=stages))) == real_jobs.CULPRITS[job]
        )
