"""The schemas of Kubernetes, from a package of PyPI that is fetched once; it has 107 MB.

Tests that need it skip where it cannot be had, saying why.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

_PACKAGE: Final = "kubernetes-validate==1.37.0"
_PLACE: Final = Path(__file__).resolve().parents[2] / ".work" / "kubernetes-validate-1.37.0"
_INSTALL_S: Final = 180
_CHECK: Final = """
import json, sys
sys.path.insert(0, sys.argv[1])
import kubernetes_validate as k
version, documents = json.load(sys.stdin)
for document in documents:
    try:
        k.validate(document, version, strict=True)
    except k.ValidationError as error:
        where = ".".join(map(str, error.path))
        print(document["kind"], document["metadata"]["name"], where, error.message)
"""


def mistakes(documents: Sequence[dict[str, Any]], version: str) -> list[str]:
    """What Kubernetes of that version would refuse; unknown keys too."""
    if not _PLACE.exists():
        _install()
    said = subprocess.run(
        [sys.executable, "-c", _CHECK, str(_PLACE)], input=json.dumps([version, documents]),
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return said.stdout.splitlines()


def _install() -> None:
    unfinished = _PLACE.with_suffix(".unfinished")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check",
         "--no-compile", "--target", str(unfinished), _PACKAGE],
        capture_output=True, text=True, check=False, timeout=_INSTALL_S,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"{_PACKAGE} cannot be had: {(done.stderr.splitlines() or ['?'])[-1]}")
    unfinished.replace(_PLACE)
