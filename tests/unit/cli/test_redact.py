"""Secrets that are planted in objects and logs do not get into a report; refusals are in plain words."""

from __future__ import annotations

import pytest

from kubectl_falcon.bundle import Gathered, files
from kubectl_falcon.trouble import DeniedError, NotThereError, Wanted, trouble

PLANTED = "planted-4711-value"


def test_a_planted_secret_is_in_no_file() -> None:
    found = Gathered()
    container = {
        "env": [{"name": "WANDB_API_KEY", "value": PLANTED}, {"name": "MODE", "value": "plain-env-value"}],
        "args": ["--token", "argument-secret", "--steps", "100"],
        "livenessProbe": {"httpGet": {"httpHeaders": [{"name": "X", "value": "header-secret"}]}},
    }
    found.objects["pods.json"] = [{"metadata": {"name": "gpt2-0-a"}, "spec": {"containers": [container]}}]
    found.logs["logs/agent.log"] = f"started with {PLANTED}\nwandb --api-key {PLANTED}"
    found.missing.append(f"nodes: refused {PLANTED}")
    everything = b"".join(files(found, "gpt2").values())
    for secret in (PLANTED, "plain-env-value", "argument-secret", "header-secret"):
        assert secret.encode() not in everything
    assert b"gpt2-0-a" in everything
    assert b'"100"' in everything


@pytest.mark.parametrize(
    ("stderr", "kind", "part"),
    [
        (
            'Error from server (Forbidden): x is forbidden: User "u"',
            DeniedError,
            "you may not get trainingjobs.falcon.dev",
        ),
        (
            'Error from server (NotFound): trainingjobs "x" not found',
            NotThereError,
            "there is no trainingjobs.falcon.dev 'x'",
        ),
        ('error: the server doesn\'t have a resource type "trainingjobs"', Exception, "are not installed there"),
    ],
)
def test_a_refusal_is_in_plain_words(stderr: str, kind: type[Exception], part: str) -> None:
    error = trouble(stderr, Wanted("get", "trainingjobs.falcon.dev", "x", "namespace team"))
    assert isinstance(error, kind)
    assert part in str(error)
