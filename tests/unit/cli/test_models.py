"""How the plugin shows what was learned, also where a person or a later service has written it."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_anomaly.learning import document
from falcon_anomaly.learning.document import Discarded, Kind
from falcon_anomaly.learning.limits import scale
from falcon_core.job_kind import kind_of
from kubectl_falcon.kubectl import JOBS, Kubectl
from kubectl_falcon.series.models import FORMAT, kind_from, models
from kubectl_falcon.trouble import TroubleError

SPEC = {"replicas": 2, "template": {"spec": {"containers": [{"image": "t:1", "command": ["python", "t.py"]}]}}}
NAME = kind_of("team", SPEC)
LEARNED = Kind(
    scale=scale(),
    version=3,
    learned=20_788,
    used=20_789,
    limits={"memory": (50, 62), "cpu": (None, 50)},
    discarded=Discarded(version=4, day=20_789, why="2 alarms in healthy runs"),
)


class Cluster(Kubectl):
    """Takes kubectl's place: a job, and a ConfigMap with this data."""

    def __init__(self, data: dict[str, Any] | None, refused: tuple[str, ...] = ()) -> None:
        super().__init__([], "team")
        self._data = data
        self._refused = refused

    def within(self, namespace: str) -> Cluster:
        return self

    def get(self, resource: str, name: str, **_: Any) -> dict[str, Any]:
        return {"metadata": {"namespace": "team", "name": name}, "spec": SPEC}

    def list_all(self, resource: str, *selectors: str, scope: str = "Namespace") -> dict[str, Any]:
        if f"{resource} {scope}" in self._refused:
            raise TroubleError("you may not")
        if resource == JOBS:
            names = ("gpt2", "bert") if scope == "All" else ("gpt2",)
            return {"items": [{"metadata": {"namespace": "team", "name": name}, "spec": SPEC} for name in names]}
        if self._data is None:
            return {"items": []}
        return {"items": [{"metadata": {"name": "falcon-anomaly-models"}, "data": self._data}]}


def page(data: dict[str, Any] | None, job: str | None = None, refused: tuple[str, ...] = ()) -> str:
    return models(Cluster(data, refused), "falcon-system", job, None)


def test_a_line_for_each_kind_names_the_users_jobs() -> None:
    text = page({NAME: document.encode(LEARNED), "README": "foreign"})
    assert "1 kinds of jobs in falcon-system/falcon-anomaly-models" in text
    (line,) = [line for line in text.splitlines() if line.startswith(f"{NAME}  ")]
    assert line.split() == [NAME, "3", "2026-12-01", "0", "3", "2026-12-02", "team/bert,", "team/gpt2"]
    assert f"{NAME}: version 4 on 2026-12-02: 2 alarms in healthy runs" in text


@pytest.mark.parametrize(
    ("refused", "named"),
    [((f"{JOBS} All",), "team/gpt2"), ((f"{JOBS} All", f"{JOBS} Namespace"), "-")],
)
def test_a_user_who_may_not_list_jobs_sees_the_kinds(refused: tuple[str, ...], named: str) -> None:
    text = page({NAME: document.encode(LEARNED)}, refused=refused)
    (line,) = [line for line in text.splitlines() if line.startswith(f"{NAME}  ")]
    assert line.split()[6:] == [named]


def test_a_jobs_limits_are_percentages_of_what_is_shipped() -> None:
    lines = page({NAME: document.encode(LEARNED)}, "gpt2").splitlines()
    assert lines[0] == f"team/gpt2 is a job of kind {NAME}"
    assert [line.split() for line in lines if line.startswith(("memory", "cpu"))] == [
        ["cpu", "-", "50", "%"],
        ["memory", "50", "%", "62", "%"],
    ]
    assert "nothing is learned of it yet: the shipped limits hold" in page({}, "gpt2")
    assert "(0 runs are too few)" in page({NAME: document.encode(Kind())}, "gpt2")


def test_where_nothing_is_installed_it_says_what_to_look_at() -> None:
    with pytest.raises(TroubleError, match=r"anomalies\.learning\.enabled"):
        page(None)
    with pytest.raises(TroubleError, match="you may not"):
        page({}, refused=("configmaps Namespace",))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"format":7}',
        '{"format":1,"version":"x","limits":[1],"runs":7,"discarded":5,"used":-1}',
        '{"format":1,"version":1e999,"learned":99999999999,"used":true}',
        '{"format":1,"limits":{"\\u001b[31m":[1,2],"cpu":[1],"disk":"x","gpu":[null,"y"]}}',
        '{"format":1,"discarded":{"why":"\\u001b[2J","version":[],"day":{}}}',
        '{"format":"\\u001b[2J"}',
        "[" * 100_000,
    ],
)
def test_any_text_is_shown_without_a_trace_or_an_escape_code(text: str) -> None:
    for job in (None, "gpt2"):
        assert "\033" not in page({NAME: text}, job)


def test_the_plugin_reads_the_format_that_the_service_writes() -> None:
    assert document.FORMAT == FORMAT
    kind = kind_from(NAME, document.encode(LEARNED))
    assert (kind.problem, kind.version, kind.count) == ("", 3, 3)
    assert kind.limits == (("cpu", None, 50), ("memory", 50, 62))
