"""Run `make demo`: install, train, slow a node, read the diagnosis, watch the repair.

The cluster and the images exist already (the Makefile's business); this tells the story and fails if it goes wrong.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

from dev.cluster import faults
from dev.demo.story import Story, iteration_ms
from dev.install import KUBECONFIG, ROOT, SYSTEM_NAMESPACE, heal_nodes, install_chart, load_images
from dev.kubectl import Kubectl, KubectlError, WaitTimeoutError

JOB = "gpt2"
SLOW_RANK = 2
SLOWED_TO = 0.3
HEALTHY_ITERATIONS = 30  # before the fault: an iteration time that is more than the noise of the start


def settled_iteration_ms(story: Story, seconds: float) -> float:
    """Return the median of the reported iteration time over some seconds."""
    seen: list[float] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        now = iteration_ms(story.status())
        if now is not None:
            seen.append(now)
        time.sleep(0.5)
    if not seen:
        raise RuntimeError("no iteration time was reported: see `kubectl describe trainingjob gpt2`")
    return statistics.median(seen)


def tell(story: Story, kubectl: Kubectl) -> None:
    story.say("images onto the nodes (a node that has one already keeps it)")
    load_images()
    story.say(f"helm install falcon charts/falcon (namespace {SYSTEM_NAMESPACE})")
    install_chart()
    story.say("kubectl apply: the warm pool of spares, and the training job")
    kubectl.run("delete", "trainingjob", JOB, "--ignore-not-found", "--wait", timeout_seconds=120)
    kubectl.run("apply", "-f", str(ROOT / "examples" / "warmpool.yaml"))
    kubectl.run("apply", "-f", str(ROOT / "examples" / "trainingjob.yaml"))
    story.wait(
        "the job trains and its iteration time is known",
        lambda s: s.get("state") == "Running" and s.get("iterations", {}).get("count", 0) >= HEALTHY_ITERATIONS,
        timeout_seconds=180,
    )
    healthy = settled_iteration_ms(story, 10)
    story.say(f"healthy: {healthy:.0f} ms an iteration")
    story.show("get", "trainingjob", JOB)
    story.show("get", "trainingrun", JOB, "-o", "wide")
    story.show("get", "pods", "-o", "wide")

    node = story.node_of_rank(SLOW_RANK)
    story.say(f"slowing {node}, which holds rank {SLOW_RANK}, to {SLOWED_TO:.0%} of its CPU (a real cgroup quota)")
    faults.slow(node, SLOWED_TO)
    slowed_at = time.monotonic()
    status = story.wait(
        "the slow rank is named",
        lambda s: any(d.get("node") == node for d in s.get("diagnoses", [])),
        timeout_seconds=90,
    )
    slowed = iteration_ms(status) or 0.0
    story.say(f"named {time.monotonic() - slowed_at:.1f} s after the fault; {slowed:.0f} ms an iteration")
    story.describe_status()
    story.show("get", "trainingrun", JOB, "-o", "wide")
    story.wait(
        "the node is replaced and training goes on",
        lambda s: s.get("state") == "Running" and any(d.get("state") == "Resolved" for d in s.get("diagnoses", [])),
        timeout_seconds=180,
    )
    after = settled_iteration_ms(story, 10)
    story.say(f"repaired {time.monotonic() - slowed_at:.0f} s after the fault")
    story.describe_status()
    story.show("get", "trainingrun", JOB, "-o", "wide")
    story.show("get", "pods", "-o", "wide")
    print(f"  iteration time   healthy {healthy:.0f} ms   slowed {slowed:.0f} ms   after {after:.0f} ms\n")


def farewell() -> None:
    print(f"""Look further:
  export KUBECONFIG={KUBECONFIG}
  kubectl get trainingjob {JOB} --watch
  kubectl describe trainingjob {JOB}
  kubectl describe warmpool spares
  kubectl logs -n {SYSTEM_NAMESPACE} deployment/falcon
  python -m dev.cluster slow NODE 0.3 | compete NODE | kill NODE | heal NODE
Tear down:
  make demo-down""")


def main() -> int:
    argparse.ArgumentParser(prog="make demo", description=__doc__).parse_args()
    kubectl = Kubectl(KUBECONFIG)
    story = Story(kubectl, JOB)
    try:
        heal_nodes(kubectl)  # what an earlier demo left
        tell(story, kubectl)
    except (KubectlError, WaitTimeoutError, RuntimeError, subprocess.SubprocessError) as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        farewell()
        return 1
    farewell()
    return 0


if __name__ == "__main__":
    sys.exit(main())
