"""Start the anomaly service from the command line: ``falcon-anomaly``, or ``python -m falcon_anomaly``.

Exit codes: 0 after SIGTERM or SIGINT, 1 when something fails, 78 for settings that cannot be used or a package that is
missing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from falcon_core.command_line import missing_package, parser
from falcon_core.environment import EXIT_CONFIG

PROGRAM = "falcon-anomaly"
DESCRIPTION = """\
Run Falcon's anomaly service: read the series of all ranks from the gateways, compare ranks with each other and with
their own past, and tell the operator who differs.

It takes no arguments: its settings are FALCON_* environment variables, which the Helm chart sets. Each setting that is
missing or wrong is named, all of them at once.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the service until it is ended. Return the exit code."""
    parser(PROGRAM, DESCRIPTION).parse_args(arguments)
    try:
        from falcon_anomaly import process
    except ModuleNotFoundError as error:
        print(missing_package(PROGRAM, "anomaly", error), file=sys.stderr)
        return EXIT_CONFIG
    return process.live()


if __name__ == "__main__":
    sys.exit(main())
