"""Each threat of docs/security.md names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_tests_that_threats_name_exist() -> None:
    document = (ROOT / "docs" / "security.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", document))
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"^ *(?:async )?def (test_\w+)", sources, re.MULTILINE))
    assert len(named) > 20
    assert named - defined == set()
