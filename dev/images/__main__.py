"""Run ``python -m dev.images [NAME…]``: build Falcon's images whose inputs changed, and say how large they are."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dev.images.build import LOCAL_BASE, BuildError, build, install_tools, one_at_a_time, prune, summary
from dev.images.host import HostError
from dev.images.recipe import RECIPES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m dev.images", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(recipe.name for recipe in RECIPES))
    parser.add_argument("--base", default=LOCAL_BASE, help="a Debian 12 image (default: one made here by debootstrap)")
    parser.add_argument(
        "--binaries",
        type=Path,
        action="append",
        required=True,
        help="folder of etcd, etcdctl or falcon-gateway; may be repeated",
    )
    args = parser.parse_args()
    unknown = set(args.names) - {recipe.name for recipe in RECIPES}
    if unknown:
        parser.error(f"no image is called {', '.join(sorted(unknown))}")
    chosen = [recipe for recipe in RECIPES if not args.names or recipe.name in args.names]
    try:
        with one_at_a_time():
            install_tools()
            for recipe in chosen:
                build(recipe, args.base, args.binaries)
            prune(RECIPES)
    except (BuildError, HostError, FileNotFoundError) as error:
        print(f"\nimages: {error}", file=sys.stderr)
        return 1
    print(summary(chosen))
    return 0


if __name__ == "__main__":
    sys.exit(main())
