"""Every command that a document shows is run, and prints what the document says."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE
from tests.support.walkthrough import Reader, read_document

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path for path in (ROOT / "docs").rglob("*.md") if "```console" in path.read_text()
)
_COMMAND_S = 120.0


@pytest.fixture
def directory() -> Iterator[Path]:
    """One with a short name, for sockets have short names."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as name:
        yield Path(name)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_a_document_is_true(document: Path, directory: Path) -> None:
    steps = read_document(document.read_text())
    assert steps, "nothing in it can be followed"
    with Reader(directory, _environment(directory)) as reader:
        for step in steps:
            reader.follow(step, _COMMAND_S * PATIENCE)


def _environment(directory: Path) -> dict[str, str]:
    programs = Path(sys.executable).parent
    kept = {
        key: os.environ[key]
        for key in ("JAVA_HOME", "JDK_JAVA_OPTIONS", "LANG")
        if key in os.environ
    }
    return {
        **kept,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(directory),
        "COLUMNS": "100",
    }
