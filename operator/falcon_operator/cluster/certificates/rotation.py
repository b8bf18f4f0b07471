"""Decide by which authority certificates are made, and which ones are trusted, while one replaces another.

A new authority is added to every bundle first. Certificates are made by it once all processes have read these bundles:
``SPREAD_SECONDS`` after the bundles were written, and only when etcd, which reads its authorities at its start alone,
accepts a certificate by the new one. The former authority leaves the bundles ``OVERLAP_SECONDS`` after the new one was
made, and never before all certificates are by the new one. A further authority in that time takes only its direct
predecessor along: what is older leaves the bundles as soon as nothing that it signed is in use, so that a key that is
known to others is worth nothing soon. Nothing is stored for it: the bundles show which authorities were trusted, and a
process that takes over waits again.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from falcon_operator.bus import certs
from falcon_operator.bus.certs import Pair

# Jobs' Secrets are written again every 300 s, kubelets take up to 90 s, and readers look every 60 s at the latest.
SPREAD_SECONDS = 600.0
OVERLAP_SECONDS = 86_400.0
Step = Literal["Only", "Spreading", "Proving", "Switched"]


class Authority(msgspec.Struct, frozen=True):
    """An authority, and its predecessor as long as that may still sign."""

    newest: Pair
    former: Pair | None = None


class Stage(msgspec.Struct, frozen=True):
    """What holds now. ``Only``: no other authority is known. ``Proving``: the proof of the new one is due."""

    step: Step
    trusted: bytes  # PEM of all authorities that are trusted, the newest first
    issuer: Pair  # signs what is made now

    @property
    def accepted(self) -> bytes:
        """Return the PEM of the authorities whose certificates may stay."""
        return self.issuer.cert if self.step in ("Only", "Switched") else self.trusted


class Rotation:
    """The change of one authority, as seen by this process."""

    def __init__(self) -> None:
        self._newest = b""
        self._held_since: float | None = None  # since when all bundles have held the newest authority, unix seconds
        self._switched_at: float | None = None
        self._predecessor: list[bytes] = []  # of the newest authority, if this process had changed to it
        self._older_go_at = 0.0  # unix seconds: what the predecessor itself had replaced is in use until then

    def look(self, authority: Authority, bundles: Iterable[bytes], now: dt.datetime) -> Stage:
        """Return what holds.

        Args:
            bundles: PEM of the authorities in each Secret that exists and is read by others.
        """
        newest = authority.newest.cert
        if newest != self._newest:
            self._begin(newest, now)
        found = [certs.authorities(bundle, now) for bundle in bundles]
        canonical = certs.authorities(newest, now)
        others = [each for each in self._others(authority, found, now) if each not in canonical]
        if not others or self._is_over(now):
            return Stage("Only", newest, authority.newest)
        if not found or not all(set(canonical) <= set(held) for held in found):
            self._held_since = self._switched_at = None
        elif self._held_since is None:
            self._held_since = now.timestamp()
        trusted = newest.rstrip(b"\n") + b"\n" + b"".join(others)
        if self._switched_at is not None:
            return Stage("Switched", trusted, authority.newest)
        spread = self._held_since is not None and now.timestamp() - self._held_since >= SPREAD_SECONDS
        return Stage("Proving" if spread else "Spreading", trusted, authority.former or authority.newest)

    def switch(self, stage: Stage, authority: Authority, now: dt.datetime) -> Stage:
        """Make certificates by the newest authority from now on: all who check them have been found to trust it."""
        self._switched_at = now.timestamp()
        return Stage("Switched", stage.trusted, authority.newest)

    def _begin(self, newest: bytes, now: dt.datetime) -> None:
        self._predecessor = []
        if self._switched_at is not None:
            self._predecessor = certs.authorities(self._newest, now)
            self._older_go_at = self._switched_at + SPREAD_SECONDS
        self._newest, self._held_since, self._switched_at = newest, None, None

    def _others(self, authority: Authority, found: Sequence[Sequence[bytes]], now: dt.datetime) -> list[bytes]:
        """Return who is trusted apart from the newest: the former, even where no bundle is left, and who is in them."""
        former = certs.authorities(authority.former.cert, now) if authority.former else []
        every = dict.fromkeys([*former, *(pem for held in found for pem in held)])
        if not self._predecessor or now.timestamp() < self._older_go_at:
            return list(every)
        return [each for each in every if each in former or each in self._predecessor]

    def _is_over(self, now: dt.datetime) -> bool:
        """Check whether the former authority can go: what it signed was replaced long enough ago to be read."""
        if self._switched_at is None or now.timestamp() - self._switched_at < SPREAD_SECONDS:
            return False
        return now.timestamp() - certs.made_unix(self._newest) >= OVERLAP_SECONDS


def explain(name: str, secret: str, stage: Stage, doubts: Sequence[str]) -> str:
    """Say for people how far the replacement of an authority is; "" where none is under way or nothing is awaited."""
    if stage.step in ("Only", "Switched"):
        return ""
    text = (
        f"AuthorityReplaced: Secret {secret} holds a new authority ({name}); the former is trusted as well, and its"
        " certificates stay in use until all processes have read the new one"
    )
    return f"{text}. Waiting: {'; '.join(doubts)}" if doubts else f"{text}, about {SPREAD_SECONDS / 60:.0f} minutes"
