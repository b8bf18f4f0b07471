"""Show a program's version, and name the package to install where one is missing, for all command lines."""

from __future__ import annotations

import argparse

from falcon_core import __version__

DISTRIBUTION = "falcon-training"


def parser(program: str, description: str) -> argparse.ArgumentParser:
    """Return a parser that knows ``--help`` and ``--version``; ``description`` keeps its line breaks."""
    made = argparse.ArgumentParser(
        prog=program, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    return made


def missing_package(program: str, extra: str, error: ModuleNotFoundError) -> str:
    """Say which package is missing and which extra of the distribution brings it.

    Raises:
        ModuleNotFoundError: ``error`` itself, where a module of Falcon's own is missing: no extra installs it.
    """
    if error.name is None or error.name.startswith("falcon_"):
        raise error
    return f"{program}: the Python package {error.name} is missing: pip install '{DISTRIBUTION}[{extra}]'"
