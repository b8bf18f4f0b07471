"""Explain kubectl's refusals in plain words, with a remedy."""

from __future__ import annotations

import re
from dataclasses import dataclass

from falcon_core.text import clean, clip

_MOST = 400  # characters of a message that is passed on


class TroubleError(Exception):
    """The error of a command that could not do its work; the message is for people."""


class NotThereError(TroubleError):
    """The error of an object that does not exist."""


class DeniedError(TroubleError):
    """The error of a right that is missing."""


@dataclass(frozen=True)
class Wanted:
    """What was asked of the API server. ``namespace``: in words; empty for what has none."""

    verb: str
    resource: str  # with its group: trainingjobs.falcon.dev
    name: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{f' in {self.namespace}' if self.namespace else ''}"


_RULES = (
    (re.compile(r"\(Forbidden\)"), "denied"),
    (re.compile(r"doesn't have a resource type|could not find the requested resource"), "no kind"),
    (re.compile(r"\(NotFound\)"), "not found"),
    (re.compile(r"\(Unauthorized\)|must be logged in"), "not logged in"),
    (re.compile(r"connection to the server|[Uu]nable to connect|dial tcp|Client\.Timeout|TLS handshake"), "no server"),
    (re.compile(r"context .* does not exist|no configuration|current-context"), "no context"),
)


def trouble(stderr: str, wanted: Wanted) -> TroubleError:
    """Return the error for what kubectl wrote to stderr when it was refused."""
    said = clip(" ".join(clean(stderr).split()), _MOST)
    # kubectl has no codes for its errors: its words are all there is.
    kind = next((kind for pattern, kind in _RULES if pattern.search(stderr)), "")
    match kind:
        case "denied":
            return DeniedError(_denied(wanted))
        case "no kind":
            return TroubleError(
                f"the cluster knows no {wanted.resource}: Falcon's definitions (CRDs) are not installed there;"
                " install the chart, or choose another cluster with --context"
            )
        case "not found":
            where = f" in {wanted.namespace}" if wanted.namespace else ""
            return NotThereError(f"there is no {wanted.resource} {wanted.name!r}{where}")
        case "not logged in":
            return TroubleError(f"the cluster does not know who you are: log in again ({said})")
        case "no server":
            return TroubleError(f"the API server cannot be reached: {said}")
        case "no context":
            return TroubleError(f"the kubeconfig cannot be used: {said}; kubectl config get-contexts lists contexts")
    return TroubleError(f"cannot {wanted}: {said or 'kubectl gave no reason'}")


def _denied(wanted: Wanted) -> str:
    role = "edit" if wanted.verb in ("patch", "create", "update", "delete") else "view"
    if not wanted.namespace:
        return f"you may not {wanted}: this needs a ClusterRole that allows it, bound by a ClusterRoleBinding"
    return f"you may not {wanted}: ask for the role {role} there (rolebinding to the ClusterRole {role})"
