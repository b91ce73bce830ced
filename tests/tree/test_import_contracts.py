"""Each import contract turns red on the import it forbids; a contract that cannot fail is none."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOMES = ("specs", "collector", "logd", "router", "deploy")

VIOLATIONS = [
    ("layers", "specs/penstock/specs/subjects.py", "import penstock.service"),
    ("layers", "deploy/penstock/base/extras.py", "import penstock.service"),
    ("layers", "logd/penstock/logd/limits.py", "import penstock.collector.limits"),
    ("layers", "collector/penstock/collector/limits.py", "import penstock.router.errors"),
    (
        "console-asks-parts",
        "deploy/penstock/deploy/console/web.py",
        "import penstock.collector.limits",
    ),
    (
        "console-asks-parts",
        "deploy/penstock/deploy/private_file.py",
        "import penstock.router.errors",
    ),
    (
        "log-knows-no-telemetry",
        "logd/penstock/logd/limits.py",
        "import penstock.specs.models.kinds",
    ),
    ("client-is-light", "logd/penstock/logd/client/client.py", "import penstock.service"),
    (
        "cluster-knows-no-door",
        "logd/penstock/logd/cluster/streams.py",
        "import penstock.logd.api.protocol",
    ),
    ("log-store-is-protected", "router/penstock/router/errors.py", "import penstock.logd.storage"),
    ("cores-are-pure", "logd/penstock/logd/intake/intake.py", "import time"),
    ("cores-are-pure", "deploy/penstock/deploy/up/demo/reconciliation.py", "import asyncio"),
    ("models-are-light", "specs/penstock/specs/models/envelope.py", "import structlog"),
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources that a test may spoil."""
    copy = tmp_path_factory.mktemp("tree")
    shutil.copy(ROOT / "pyproject.toml", copy)
    for home in HOMES:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / home / "penstock", copy / home / "penstock", ignore=ignore)
    return copy


def _broken(tree: Path, contract: str) -> bool:
    homes = os.pathsep.join(str(tree / home) for home in HOMES)
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache", "--contract", contract],
        cwd=tree, env=os.environ | {"PYTHONPATH": homes}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert "Contracts:" in done.stdout, done.stdout + done.stderr
    return done.returncode != 0


@pytest.mark.parametrize(("contract", "file", "line"), VIOLATIONS)
def test_a_contract_is_broken_by_what_it_forbids(
    tree: Path, contract: str, file: str, line: str
) -> None:
    path = tree / file
    original = path.read_text()
    try:
        path.write_text(f"{original}\n{line}\n")
        assert _broken(tree, contract)
    finally:
        path.write_text(original)


@pytest.mark.parametrize("contract", sorted({contract for contract, _, _ in VIOLATIONS}))
def test_the_tree_as_it_is_keeps_the_contract(tree: Path, contract: str) -> None:
    assert not _broken(tree, contract)
