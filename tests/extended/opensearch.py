"""OpenSearch as Maven Central has it, started for the tests: one node without security."""

import os
import pwd
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.extended import maven
from tests.extended.product import Product, answers, process
from tests.support.processes import free_port

VERSION: Final = "3.4.0"
JAVA_MIN: Final = 21

_ARTIFACT: Final = f"org.opensearch.distribution.integ-test-zip:opensearch:{VERSION}:zip"


@contextmanager
def running(directory: Path) -> Iterator[dict[str, str]]:
    """The environment that names it to the tests, while it runs.

    Raises:
        UnavailableError: No Java of that age, no Maven, or it does not come up.
    """
    java, home = maven.java(JAVA_MIN), _unpacked(directory)
    port = free_port()
    (home / "config" / "opensearch.yml").write_text(
        f"discovery.type: single-node\nhttp.host: 127.0.0.1\nhttp.port: {port}\n"
        f"transport.host: 127.0.0.1\ntransport.port: {free_port()}\n"
    )
    url = f"http://127.0.0.1:{port}"
    with process(
        [home / "bin" / "opensearch"], lambda: answers(url), directory / "opensearch.log",
        cwd=home, user=_other_user(home),  # it refuses to run as root
        env={**os.environ, "OPENSEARCH_JAVA_HOME": str(java),
             "OPENSEARCH_JAVA_OPTS": "-Xms512m -Xmx512m"},
    ):  # fmt: skip
        yield {"PENSTOCK_TEST_ELASTICSEARCH_URL": url}


def _unpacked(directory: Path) -> Path:
    """Its home; downloaded once."""
    home = directory / f"opensearch-{VERSION}"
    if home.exists():
        return home
    maven.copied(_ARTIFACT, directory)
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


OPENSEARCH: Final = Product(
    f"OpenSearch {VERSION}", running,
    ("tests/live/test_sink_contracts.py", "tests/live/test_router_sink_faults.py",
     "tests/live/test_router_elasticsearch.py"),
    "elasticsearch or document or bulk or word",
)  # fmt: skip
