"""Turn the job's plan on the bus into this pod's plan for its launcher. Pure; the agent does the I/O."""

from __future__ import annotations

from falcon_core.topology.passes import ring_passes
from falcon_core.wire.launcher.launch import LaunchPlan
from falcon_core.wire.measurement.check_links import LinksOrder, PodLinks, turns_of
from falcon_core.wire.reporting.messages import Plan


def plan_for(
    plan: Plan, pod_uid: str, *, settled: bool = False, has_imports: bool = False, probe: int = 0
) -> LaunchPlan:
    """Return what this pod's launcher has to run. A pod that is no member of the generation stops its processes.

    ``settled``: this pod's ranks of that generation train. ``has_imports``: it is known what the job's ranks import.
    ``probe``: the number of the executor of links that runs with them; 0: none.
    """
    member = next((member for member in plan.members if member.pod_uid == pod_uid), None)
    # Every pod ends with the job, whether it has a rank or not.
    if plan.phase == "Finish":
        return LaunchPlan(generation=plan.generation, phase="Finish", exit_code=plan.exit_code)
    if pod_uid in plan.standby_pods:
        # Which rank it will be is not known, so no program of this pod can wait beyond its imports.
        makes = has_imports and plan.standby != "None"
        return LaunchPlan(
            generation=plan.generation,
            phase="Stop",
            procs=plan.procs_per_replica,
            standby="Imports" if makes else "None",
        )
    if member is None or plan.phase == "Stop":
        # Only members are measured: what another pod's machine does is no question of this generation.
        wanted = member is not None
        return LaunchPlan(
            generation=plan.generation,
            phase="Stop",
            check=plan.check if wanted else 0,
            check_ms=plan.check_ms if wanted else 0,
            check_links=int(wanted and plan.check_links),
            smoke=plan.smoke if wanted else 0,
        )
    return LaunchPlan(
        generation=plan.generation,
        phase="Run",
        world_size=plan.world_size,
        nnodes=plan.world_size // plan.procs_per_replica,
        node_rank=member.replica,
        procs=plan.procs_per_replica,
        first_rank=member.first_rank,
        master_addr=plan.master_addr,
        master_port=plan.master_port,
        retries=plan.retries,
        standby=plan.standby,
        next_master_port=plan.next_master_port,
        settled=int(settled and plan.standby != "None"),
        links=probe,
        smoke=plan.smoke,
    )


def links_for(plan: Plan, pod_uid: str) -> PodLinks | None:
    """Return the links that this pod has to measure now; None where it measures none."""
    member = next((member for member in plan.members if member.pod_uid == pod_uid), None)
    order = plan.links
    if member is None or order is None or plan.phase != "Stop":
        return None
    return pod_links(order, member.replica)


def pod_links(order: LinksOrder, replica: int) -> PodLinks:
    """Return one pod's part of an order to measure links."""
    turns = turns_of(order, ring_passes([own for own, _, _ in order.ring]), replica)
    return PodLinks(
        number=order.number,
        token=order.token,
        own=replica,
        milliseconds=order.milliseconds,
        turns=turns,
        machine_milliseconds=order.machine_milliseconds,
    )


def newer(plan: Plan, current: Plan | None) -> bool:
    """Check that the plan is not older than the current plan, by generation and then by the leader's epoch."""
    return current is None or (plan.generation, plan.epoch) >= (current.generation, current.epoch)
