"""Print what extras of pyproject.toml need, one requirement a line, those of ours resolved.

    python requirements.py pyproject.toml router otlp

An image installs these in its own layer, which stays as long as they do. Standard library
only: it runs before anything is installed.
"""

# ruff: noqa: INP001 - a script, not part of a package

import re
import sys
import tomllib
from pathlib import Path

_OWN = re.compile(r"^penstock\[([a-z0-9,-]+)\]$")


def requirements(project: Path, extras: list[str]) -> list[str]:
    """Requirements of the base install and of the extras, sorted, each once."""
    document = tomllib.loads(project.read_text())["project"]
    optional: dict[str, list[str]] = document["optional-dependencies"]
    found, left, seen = set(document["dependencies"]), list(extras), set()
    while left:
        extra = left.pop()
        if extra in seen:
            continue
        seen.add(extra)
        for requirement in optional[extra]:
            own = _OWN.match(requirement)
            if own:
                left += own[1].split(",")
            else:
                found.add(requirement)
    return sorted(found)


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]), sys.argv[2:])))  # noqa: T201 - its output
