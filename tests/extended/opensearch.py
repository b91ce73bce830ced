"""OpenSearch as Maven Central has it, started for the tests: one node without security."""

import os
import pwd
import re
import shutil
import subprocess
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.processes import free_port
from tests.support.waiting import wait_until

VERSION: Final = "3.4.0"
JAVA_MIN: Final = 21
READY_S: Final = 120.0

_ARTIFACT: Final = f"org.opensearch.distribution.integ-test-zip:opensearch:{VERSION}:zip"
_COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
_RELEASE: Final = re.compile(r'version "(\d+)')


class UnavailableError(Exception):
    """It cannot be had or run here; the text says why."""


@contextmanager
def running(directory: Path) -> Iterator[dict[str, str]]:
    """The environment that names it to the tests, while it runs.

    Raises:
        UnavailableError: No Java of that age, no Maven, or it does not come up.
    """
    java, home = _java(), _unpacked(directory)
    port = free_port()
    (home / "config" / "opensearch.yml").write_text(
        f"discovery.type: single-node\nhttp.host: 127.0.0.1\nhttp.port: {port}\n"
        f"transport.host: 127.0.0.1\ntransport.port: {free_port()}\n"
    )
    user = _other_user(home)  # it refuses to run as root
    with (directory / "opensearch.log").open("wb") as log:
        process = subprocess.Popen(
            [home / "bin" / "opensearch"], cwd=home, user=user, stdout=log, stderr=log,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "OPENSEARCH_JAVA_HOME": str(java),
                 "OPENSEARCH_JAVA_OPTS": "-Xms512m -Xmx512m"},
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _answers(url, process), within_s=READY_S / 3, what="OpenSearch ready")
        yield {"PENSTOCK_TEST_ELASTICSEARCH_URL": url}
    except AssertionError as error:
        raise UnavailableError(f"{error}; see {directory / 'opensearch.log'}") from error
    finally:
        process.terminate()
        process.wait(timeout=60)


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, f"OpenSearch ended with {process.returncode}"
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _java() -> Path:
    """The home of a Java that is new enough."""
    named = [Path(os.environ["JAVA_HOME"])] if "JAVA_HOME" in os.environ else []
    for home in (*named, *sorted(Path("/usr/lib/jvm").glob("*"), reverse=True)):
        program = home / "bin" / "java"
        if not program.exists():
            continue
        said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
        release = _RELEASE.search(said.stderr)
        if release and int(release[1]) >= JAVA_MIN:
            return home
    raise UnavailableError(f"no Java {JAVA_MIN} or newer at JAVA_HOME or in /usr/lib/jvm")


def _unpacked(directory: Path) -> Path:
    """Its home; downloaded once."""
    home = directory / f"opensearch-{VERSION}"
    if home.exists():
        return home
    maven = shutil.which("mvn")
    if maven is None:
        raise UnavailableError("no mvn on PATH")
    directory.mkdir(parents=True, exist_ok=True)
    fetched = subprocess.run(
        [maven, "-q", "-B", _COPY, f"-Dartifact={_ARTIFACT}", f"-DoutputDirectory={directory}"],
        cwd=directory, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if fetched.returncode:
        raise UnavailableError(f"mvn cannot fetch {_ARTIFACT}: {fetched.stdout[-400:]}")
    unfinished = directory / "unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    archive = directory / f"opensearch-{VERSION}.zip"
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(unfinished)
    for program in (unfinished / home.name / "bin").iterdir():
        program.chmod(0o755)
    (unfinished / home.name).replace(home)
    unfinished.rmdir()
    archive.unlink()
    return home


def _other_user(home: Path) -> str | None:
    if os.geteuid():
        return None
    nobody = pwd.getpwnam("nobody")
    for path in (home, *home.rglob("*")):
        os.chown(path, nobody.pw_uid, nobody.pw_gid)
    return nobody.pw_name
