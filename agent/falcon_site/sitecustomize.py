"""Do at an interpreter's start what ``falcon-launch`` asks for, then run the image's own ``sitecustomize``.

This folder stands first on the ranks' ``PYTHONPATH`` and holds nothing else; what is asked for is in ``falcon_start``,
last on that path. It runs in whatever Python the image has, in each Python that the training starts: it must load in
all of them, fail in none, and cost next to nothing. Under ``-I``, ``-E`` or ``-S`` Python ignores it.
"""

import os
import sys

_folder = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [place for place in sys.path if os.path.abspath(place) != _folder]  # this folder hides nothing any more

if os.environ.get("FALCON_STACKS"):
    try:
        from falcon_start import stacks

        stacks.register(os.environ["FALCON_STACKS"])
    except Exception:  # training goes on without stacks
        pass

# Debian, conda and others ship a sitecustomize: Python finds theirs now, as if this module were not there.
_this = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize  # noqa: F401
except ImportError as error:
    if getattr(error, "name", "sitecustomize") != "sitecustomize":
        raise
    if _this is not None:
        sys.modules["sitecustomize"] = _this
