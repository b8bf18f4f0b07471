"""Mirror the API server's objects of one kind, trimmed to what the operator reads.

Three sources fill it: a list, the watch that continues the list, and the answers to the operator's own writes, which
may arrive before the watch reports them, or after. Of two states of an object, that with the higher resourceVersion
is newer. Kubernetes guarantees this from 1.35 on; earlier versions behave the same way. The versions of all objects of
a kind come from one counter, so ``_seen``, the highest version that the watch has reported, also says whether an answer
comes too late: the watch has been past that version, and has perhaps reported the object's deletion since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

V = TypeVar("V")
Name = tuple[str, str]  # namespace ("" for a node) and name


class Item(NamedTuple, Generic[V]):
    """The state of an object at one version."""

    name: Name
    version: int
    view: V


def nothing(_before: V | None, _after: V | None) -> None:
    """Ignore a change."""


class Mirror(Generic[V]):
    """The objects of one kind, in one namespace or in all.

    ``on_change`` receives an object's view before and after each change that the view shows; None where the object does
    not exist.
    """

    def __init__(self, on_change: Callable[[V | None, V | None], None] = nothing) -> None:
        self._on_change = on_change
        self._items: dict[Name, tuple[int, V]] = {}
        self._views: list[V] | None = None  # of all objects; None after a change
        self._seen = 0
        self.synced = False  # whether there was a list; before it, an absent object may well exist

    def __len__(self) -> int:
        return len(self._items)

    def views(self) -> list[V]:
        """Return the views of all objects. The list is shared: callers only read it."""
        if self._views is None:
            self._views = [view for _, view in self._items.values()]
        return self._views

    def get(self, name: Name) -> V | None:
        known = self._items.get(name)
        return None if known is None else known[1]

    def listed(self, items: Iterable[Item[V]], version: int) -> None:
        """Take over a list of all objects, as of ``version``. What the list lacks is gone.

        An object that this operator made or changed after ``version`` stays as it is. A version below those that were
        seen before means that the cluster was restored from a backup: then the list alone counts.
        """
        restored = version < self._seen
        found = {item.name: item for item in items}
        for name, (known, _) in list(self._items.items()):
            # The operator made an object of a later version after the list was read.
            if name not in found and (restored or known <= version):
                self._remove(name)
        for item in found.values():
            if restored or item.version >= self._version(item.name):
                self._put(item)
        self._seen = version
        self.synced = True

    def changed(self, item: Item[V]) -> None:
        """Take over an object that the watch reports as new or changed."""
        self.reached(item.version)
        if item.version >= self._version(item.name):
            self._put(item)

    def deleted(self, name: Name, version: int) -> None:
        """Take over a deletion that the watch reports. A namesake that was made since stays."""
        self.reached(version)
        if version >= self._version(name):
            self._remove(name)

    def reached(self, version: int) -> None:
        """Record that the watch has reported all changes up to this version."""
        self._seen = max(self._seen, version)

    def written(self, item: Item[V]) -> None:
        """Take over the answer to a write of this operator's own, unless the watch has been past it."""
        if item.version > self._seen and item.version > self._version(item.name):
            self._put(item)

    def ending(self, item: Item[V]) -> None:
        """Take over the state in which this operator's own deletion leaves an object, if the object is still here."""
        if 0 < self._version(item.name) <= item.version:
            self._put(item)

    def forget(self, name: Name) -> None:
        """Remove an object that the API server did not find."""
        if name in self._items:
            self._remove(name)

    def _version(self, name: Name) -> int:
        known = self._items.get(name)
        return 0 if known is None else known[0]

    def _put(self, item: Item[V]) -> None:
        before = self.get(item.name)
        if before == item.view:
            self._items[item.name] = (item.version, before)  # most changes of a node are heartbeats: no view shows them
            return
        self._items[item.name] = (item.version, item.view)
        self._notify(item.name, before, item.view)

    def _remove(self, name: Name) -> None:
        known = self._items.pop(name, None)
        if known is not None:
            self._notify(name, known[1], None)

    def _notify(self, name: Name, before: V | None, after: V | None) -> None:
        self._views = None
        self._index(name, before, after)
        self._on_change(before, after)

    def _index(self, name: Name, before: V | None, after: V | None) -> None:
        """Keep a subclass's index current."""
