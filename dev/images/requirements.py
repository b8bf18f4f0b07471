"""Print what one extra of pyproject.toml needs, for an image that installs dependencies before it copies the sources."""

import sys
import tomllib
from pathlib import Path


def requirements(extra: str) -> list[str]:
    """The extra's own requirements, its references to other extras of ours resolved, and the base ones."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    found: list[str] = list(project["dependencies"])
    wanted = [extra]
    while wanted:
        for line in project["optional-dependencies"][wanted.pop()]:
            if line.startswith(f"{project['name']}["):
                wanted += line.split("[")[1].rstrip("]").split(",")
            else:
                found.append(line)
    return found


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1])))
