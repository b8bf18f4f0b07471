"""Run the benchmark executor in a pool's own image, and hand its result to the kubelet as one line of JSON.

``python3 -m falcon_start.bench SECONDS`` runs ``falcon_bench``. Its last line is an object; ``scores`` holds its rates
by name (numbers, the higher the better), and they are compared with the scores of other nodes.
"""

import json
import math
import subprocess
import sys

OUTPUT = "/dev/termination-log"
MOST_SCORES, MOST_NAME = 32, 64  # the message that carries them has at most 4096 bytes


def run(seconds, output=OUTPUT):  # type: (str, str) -> int
    """Run the executor for about ``seconds`` under load. Return its exit status."""
    command = [sys.executable, "-m", "falcon_bench", "--size", "full", "--seconds", seconds, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, universal_newlines=True, check=False)  # noqa: UP021
    sys.stdout.write(done.stdout)
    if done.returncode == 0:
        with open(output, "w") as file:
            file.write(json.dumps({"scores": scores(done.stdout)}))
    return done.returncode


def scores(said):  # type: (str) -> dict[str, float]
    """Return the rates in the last line of the executor's output; empty where it names none."""
    lines = said.strip().splitlines()
    try:
        found = json.loads(lines[-1]).get("scores", {}) if lines else {}
        rates = {str(name)[:MOST_NAME]: float(rate) for name, rate in sorted(found.items())}
    except (ValueError, TypeError, AttributeError):
        return {}
    kept = [(name, rate) for name, rate in rates.items() if math.isfinite(rate) and rate > 0]
    return dict(kept[:MOST_SCORES])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1]))
