"""Run ``python -m dev.cluster``: up, down, status, load images, hurt and heal nodes."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dev.cluster import build, faults, images, lifecycle
from dev.cluster.process import ClusterError, exclusive


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dev.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start the cluster; clean over whatever an earlier run left")
    up.add_argument("--workers", type=int, default=3)
    up.add_argument("--spares", type=int, default=1)
    up.add_argument("--node-cores", type=float, default=0.5, help="CPU capacity of each worker and spare")
    commands.add_parser("down", help="stop it and leave nothing behind")
    commands.add_parser("status", help="what runs, and which faults are on")
    built = commands.add_parser("build", help="build the binaries only")
    built.add_argument("--api", metavar="MINOR", help="kube-apiserver and kubectl of this version alone, e.g. 1.33")
    load = commands.add_parser("load", help="import image archives on the nodes that lack them")
    load.add_argument("archives", nargs="+", type=Path)
    load.add_argument("--nodes", nargs="+", metavar="NODE", help="only these (default: all)")
    slow = commands.add_parser("slow", help="leave a node's pods a share of their CPU, by quota")
    slow.add_argument("node")
    slow.add_argument("factor", type=float)
    compete = commands.add_parser("compete", help="a competing process on a node, without any quota")
    compete.add_argument("node")
    compete.add_argument("--share", type=float, default=0.67, help="of the node's capacity")
    link = commands.add_parser("link", help="limit a node's link to a rate, e.g. 50mbit")
    link.add_argument("node")
    link.add_argument("rate")
    link.add_argument("--peer", default="", help="another node: only what the pods of the two send each other")
    cut = commands.add_parser("cut", help="take a node's link down")
    cut.add_argument("node")
    cut.add_argument("--peer", default="", help="another node: only what the pods of the two send each other")
    for name, text in (("kill", "SIGKILL a node"), ("heal", "undo its faults")):
        commands.add_parser(name, help=text).add_argument("node")
    return parser


def _load(archives: list[Path], names: list[str] | None) -> None:
    members = lifecycle.Options.load().nodes()
    unknown = set(names or ()) - {member.name for member in members}
    if unknown or not lifecycle.running():
        wrong = f"--nodes: no {', '.join(sorted(unknown))}" if unknown else "no cluster runs: make cluster-up"
        raise ClusterError(wrong)
    with exclusive():
        images.load(archives, [member for member in members if names is None or member.name in names])


def main() -> int:
    options = _parser().parse_args()
    try:
        match options.command:
            case "up":
                lifecycle.up(lifecycle.Options(options.workers, options.spares, options.node_cores))
            case "down":
                lifecycle.down()
            case "status":
                print(lifecycle.status())
            case "build":
                with exclusive():
                    build.build_api(options.api) if options.api else build.build_all()
            case "load":
                _load(options.archives, options.nodes)
            case "slow":
                faults.slow(options.node, options.factor)
            case "compete":
                faults.compete(options.node, options.share)
            case "link":
                faults.link(options.node, options.rate, options.peer)
            case "cut":
                faults.cut(options.node, options.peer)
            case "kill":
                faults.kill(options.node)
            case "heal":
                faults.heal(options.node)
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("cluster: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
