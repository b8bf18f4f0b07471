"""When a new leader has tried every job, so that gateways may forget the others."""

from __future__ import annotations

from falcon_operator.base.keys import job_key, pool_key
from falcon_operator.cluster.cache.views import JobSketch
from falcon_operator.runtime.startup_tracker import FirstLooks


def sketch(name: str) -> JobSketch:
    return JobSketch(namespace="ns", name=name, uid=f"uid-{name}")


def test_every_job_is_tried_whatever_becomes_of_it() -> None:
    looks = FirstLooks([sketch("gpt"), sketch("bert")])
    looks.tried(job_key("ns", "gpt"))
    looks.tried(job_key("ns", "gpt"))  # this look failed, and is repeated
    looks.tried(pool_key("spares"))
    assert not looks.done
    looks.tried(job_key("ns", "bert"))
    assert looks.done
    assert looks.uids == {"uid-gpt", "uid-bert"}


def test_where_there_is_no_job_there_is_none_to_try() -> None:
    assert FirstLooks([]).done
