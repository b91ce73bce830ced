"""What `validate`, `plan` and their like say of a job file, and while they are at it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from pyspark.errors import AnalysisException

from penstock.router.cli import cli
from penstock.router.session import Session
from tests.unit.router.test_router_config import JOB


class NoColumn:
    """Stands for rows that Spark knows no such column of."""

    def where(self, condition: str) -> None:
        raise AnalysisException(f"no such column in {condition}")


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Spark that starts at once and takes no condition."""
    session = SimpleNamespace(createDataFrame=lambda *_: NoColumn())
    started = SimpleNamespace(spark=session, close=lambda: None)
    monkeypatch.setattr(Session, "start", lambda *_, **__: started)


def run(directory: Path, *command: str, **keys: Any) -> Result:
    path = directory / "job.yaml"
    path.write_text(yaml.safe_dump(JOB | keys))
    return CliRunner().invoke(cli, [*command, str(path)])


CHECKS = pytest.mark.parametrize("command", [("validate",), ("--check", "--config")])


@CHECKS
@pytest.mark.usefixtures("spark")
def test_a_condition_that_is_none_is_told_with_the_job_file(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    routes = [{"name": "all", "where": "colour = 1", "sinks": ["lake"]}]
    done = run(tmp_path, *command, routes=routes)
    assert done.exit_code == 78
    assert f"error: {tmp_path}/job.yaml: routes.0.where: route 'all': 'colour" in done.stderr


@CHECKS
def test_a_key_file_that_is_away_is_told_with_the_job_file(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    step = {"hash": {"fields": ["body"], "key_file": str(tmp_path / "none")}}
    routes = [{"name": "all", "transforms": [step], "sinks": ["lake"]}]
    done = run(tmp_path, *command, routes=routes)
    assert done.exit_code == 78
    assert f"error: {tmp_path}/job.yaml: routes.0.transforms.0.hash.key_file: " in done.stderr
