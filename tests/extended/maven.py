"""Products of Maven Central, and a Java to run them."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.extended.product import UnavailableError

_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
_RELEASE: Final = re.compile(r'version "(\d+)')
_POM: Final = """<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock.products</groupId><artifactId>product</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
  </dependency></dependencies>
</project>
"""


def java(release_min: int) -> Path:
    """The home of a Java that is new enough.

    Raises:
        UnavailableError: There is none.
    """
    named = [Path(os.environ["JAVA_HOME"])] if "JAVA_HOME" in os.environ else []
    for home in (*named, *sorted(Path("/usr/lib/jvm").glob("*"), reverse=True)):
        program = home / "bin" / "java"
        if not program.exists():
            continue
        said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
        release = _RELEASE.search(said.stderr)
        if release and int(release[1]) >= release_min:
            return home
    raise UnavailableError(f"no Java {release_min} or newer at JAVA_HOME or in /usr/lib/jvm")


def copied(artifact: str, directory: Path) -> None:
    """Copy one artifact into a directory.

    Raises:
        UnavailableError: It cannot be had.
    """
    _maven(directory, "copy", f"-Dartifact={artifact}", f"-DoutputDirectory={directory}")


def libraries(artifact: str, home: Path) -> Path:
    """The directory with a program's jars, and all that it needs to run; copied once.

    Raises:
        UnavailableError: They cannot be had.
    """
    found, unfinished = home / "libraries", home / "unfinished"
    if found.exists():
        return found
    shutil.rmtree(unfinished, ignore_errors=True)
    home.mkdir(parents=True, exist_ok=True)
    (home / "pom.xml").write_text(_POM.format(*artifact.split(":")))
    _maven(home, "copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={unfinished}")
    return unfinished.replace(found)


def _maven(directory: Path, goal: str, *arguments: str) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise UnavailableError("no mvn on PATH")
    directory.mkdir(parents=True, exist_ok=True)
    command = [maven, "-q", "-B", f"{_PLUGIN}:{goal}", *arguments]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnavailableError(f"mvn {goal} {arguments[0]}: {done.stdout[-400:]}")
