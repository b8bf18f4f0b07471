"""Do at an interpreter's start what ``falcon-launch`` asks for, then run the image's own ``sitecustomize``.

This folder stands first on the ranks' ``PYTHONPATH`` and holds nothing else; what is asked for is in ``falcon_start``,
last on that path. It runs in whatever Python the image has, in each Python that the training starts: it must load in
all of them, fail in none, and cost next to nothing. Under ``-I``, ``-E`` or ``-S`` Python ignores it.
"""

import os
import sys

# This folder hides nothing any more. It is compared as it stands in sys.path, since a look at the current folder fails
# where that has been removed.
_folder = os.path.dirname(__file__)
sys.path[:] = [place for place in sys.path if place.rstrip("/") != _folder]
# For this process alone, not for those that it starts.
_socket = os.environ.pop("FALCON_STANDBY", "")
_port = os.environ.pop("FALCON_STANDBY_PORT", "")
_imports = os.environ.pop("FALCON_IMPORTS", "")
_others = os.environ.pop("FALCON_STANDBY_IMPORTS", "")  # another pod's record: this one has had no ranks


def _listen():  # type: () -> None
    if os.environ.get("FALCON_STACKS"):
        try:
            from falcon_start import garbage_collections, notes, stacks, uncaught

            if notes.are_shown(os.environ["FALCON_STACKS"]):
                return
            stacks.register(os.environ["FALCON_STACKS"])
            shown = notes.Notes(os.environ["FALCON_STACKS"])
            uncaught.register(shown)
            garbage_collections.register(shown)
        except Exception:  # training goes on without stacks
            pass


def _stand_by():  # type: () -> None
    try:
        from falcon_start import standby

        standby.hold(int(_socket), _others or _imports, _port)
    except BaseException:  # it must not run the program
        os._exit(1)


def _record():  # type: () -> None
    try:
        from falcon_start import imports

        imports.record(_imports, begin=not _socket, ahead=_others)
    except Exception:  # there will be no standby
        pass


if not _socket:
    _listen()

# Debian, conda and others ship a sitecustomize: Python finds theirs now, as if this module were not there.
_this = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize  # noqa: F401
except ImportError as error:
    if getattr(error, "name", "sitecustomize") != "sitecustomize":
        raise
    if _this is not None:
        sys.modules["sitecustomize"] = _this
finally:
    if _socket:
        _stand_by()
        _listen()
    if _imports:
        _record()
