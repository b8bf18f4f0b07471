"""Start the operator from the command line: ``falcon-operator``, or ``python -m falcon_operator``.

Exit codes: 0 after SIGTERM or SIGINT, 1 when the leadership is lost or something fails, 78 for settings that cannot be
used, a package that is missing, or a definition in the cluster that is older than the operator.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from falcon_core.command_line import missing_package, parser

PROGRAM = "falcon-operator"
EXIT_CONFIG = 78  # sysexits.h EX_CONFIG
DESCRIPTION = """\
Run Falcon's operator: watch TrainingJobs and WarmPools, and carry out what their incidents need.

It takes no arguments: its settings are FALCON_* environment variables, which the Helm chart sets. It runs in a pod,
or with a KUBECONFIG. Each setting that is missing or wrong is named, all of them at once.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the operator until it is ended. Return the exit code."""
    parser(PROGRAM, DESCRIPTION).parse_args(arguments)
    try:
        from falcon_operator.runtime import process
    except ModuleNotFoundError as error:
        print(missing_package(PROGRAM, "operator", error), file=sys.stderr)
        return EXIT_CONFIG
    return process.live()


if __name__ == "__main__":
    sys.exit(main())
