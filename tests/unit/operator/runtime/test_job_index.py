"""Which jobs still exist: the API server is asked only about what the watch does not know, and once."""

from __future__ import annotations

from falcon_operator.cluster.cache.views import JobSketch
from falcon_operator.runtime.job_index import LiveJobs


def job(uid: str, *, over: bool = False) -> JobSketch:
    return JobSketch(namespace="ns", name=f"job-{uid}", uid=uid, over=over)


class Server:
    """Jobs as the watch and as a list know them."""

    def __init__(self, known: list[JobSketch], listed: list[JobSketch]) -> None:
        self.known, self.listed = known, listed
        self.asked = 0
        self.jobs = LiveJobs(lambda: self.known, self.list_jobs)

    async def list_jobs(self) -> list[JobSketch]:
        self.asked += 1
        return self.listed


async def test_jobs_that_the_watch_knows_are_not_asked_for() -> None:
    server = Server([job("a"), job("b", over=True)], [])
    assert await server.jobs.existing(frozenset("ab")) == {"a", "b"}
    assert await server.jobs.unfinished(frozenset("ab")) == {"a"}
    assert await server.jobs.unfinished(frozenset()) == frozenset()
    assert server.asked == 0


async def test_a_job_that_the_watch_does_not_know_yet_exists_all_the_same() -> None:
    server = Server([], [job("new"), job("over", over=True)])
    assert await server.jobs.unfinished(frozenset({"new", "over"})) == {"new"}
    assert server.asked == 1


async def test_a_job_that_is_gone_is_asked_for_once() -> None:
    server = Server([job("a")], [job("a")])
    for _ in range(3):
        assert await server.jobs.existing(frozenset({"a", "gone"})) == {"a"}
    assert server.asked == 1
