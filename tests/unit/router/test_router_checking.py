"""What `validate`, `plan` and their like say of a job file, and while they are at it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from pyspark.errors import AnalysisException

from penstock.router.cli.main import cli
from penstock.router.read.logd_reader import LogState
from penstock.router.replay import bounded_run as bounded_run_module
from penstock.router.replay.bounded_run import bounded_run
from penstock.router.spark.session import Session
from penstock.service import ConfigError
from tests.support.package_files import uninstall
from tests.unit.router.test_router_config import JOB, load


class NoColumn:
    """Stands for rows that Spark knows no such column of."""

    def where(self, condition: str) -> None:
        raise AnalysisException(f"no such column in {condition}")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A Spark that starts at once and takes no condition."""
    session = SimpleNamespace(createDataFrame=lambda *_: NoColumn())
    started = SimpleNamespace(spark=session, close=lambda: None)
    # What is said is meant, not what Spark finds: that takes seconds, and is in the live tests.
    monkeypatch.setattr(Session, "start", lambda *_, **__: started)
    return started


def run(directory: Path, *command: str, **keys: Any) -> Result:
    path = directory / "job.yaml"
    path.write_text(yaml.safe_dump(JOB | keys))
    return CliRunner().invoke(cli, [*command, str(path)])


CHECKS = pytest.mark.parametrize("command", [("validate",), ("--check", "--config")])


@CHECKS
@pytest.mark.usefixtures("started")
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


NEEDY = {
    "google": {"type": "bigquery", "table": "shop.d.t"},
    "delta": {"type": "delta", "table": "/var/lib/d"},
    "iceberg": {"type": "iceberg", "table": "d.t", "catalog": {"type": "sql"}},
    "kafka": {"type": "kafka", "bootstrap_servers": "127.0.0.1:9092", "topic": "t"},
    "nats": {"type": "nats", "servers": "nats://127.0.0.1:4222", "subject": "out.{kind}"},
    "otlp": {"type": "otlp", "url": "http://127.0.0.1:4317", "protocol": "grpc"},
    "postgres": {"type": "postgres", "dsn": "postgresql://u:p@h/d", "table": "t"},
    "s3": {"type": "s3", "url": "http://127.0.0.1:9000/lake"},
}
LIBRARIES = {
    "google": "grpc",
    "delta": "deltalake",
    "iceberg": "pyiceberg.exceptions",
    "kafka": "confluent_kafka",
    "nats": "nats",
    "otlp": "grpc",
    "postgres": "psycopg",
    "s3": "botocore.auth",
}


@pytest.mark.parametrize("command", [("validate",), ("--check", "--config"), ("plan",)])
@pytest.mark.parametrize("extra", sorted(NEEDY))
def test_a_sink_whose_library_is_missing_is_refused_before_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], extra: str
) -> None:
    assert run(tmp_path, *command, sinks={"lake": NEEDY[extra]}).stderr == ""
    uninstall(monkeypatch, LIBRARIES[extra])
    done = run(tmp_path, *command, sinks={"lake": NEEDY[extra]})
    assert done.exit_code == 78
    assert f"error: {tmp_path}/job.yaml: sinks.lake: this sink needs a library" in done.stderr
    assert f"[{extra}]'" in done.stderr


CONDITION = [{"name": "all", "where": "kind = 'log'", "sinks": ["lake"]}]


class Column:
    """Stands for rows that have it, whatever it is."""

    def where(self, _: str) -> Any:
        condition = SimpleNamespace(deterministic=lambda: True)
        analyzed = SimpleNamespace(condition=lambda: condition)
        plan = SimpleNamespace(analyzed=lambda: analyzed)
        return SimpleNamespace(_jdf=SimpleNamespace(queryExecution=lambda: plan))


@pytest.mark.parametrize(
    "moment",
    ["timestamp 'now'", "TIMESTAMP_NTZ ' now '", "timestamp_ltz\t'Today'", "date'yesterday'",
     'date "tomorrow"'],
)  # fmt: skip
def test_a_moment_that_is_fixed_when_the_job_starts_is_refused(
    tmp_path: Path, started: SimpleNamespace, moment: str
) -> None:
    """Spark's parser makes a constant of it, and a later batch would not see a later time."""
    started.spark.createDataFrame = lambda *_: Column()
    route = {"name": "all", "where": f"kind = 'log' and time < {moment}", "sinks": ["lake"]}
    done = run(tmp_path, "validate", "--quiet", routes=[route])
    assert done.exit_code == 78
    assert f"routes.0.where: route 'all': {moment} in " in done.stderr
    assert "is fixed when the job starts" in done.stderr
    assert "write current_timestamp() or current_date()" in done.stderr
    same = route | {"where": "time < timestamp '2026-01-01' and body <> 'the date now'"}
    assert run(tmp_path, "validate", "--quiet", routes=[same]).exit_code == 0


def mask(*fields: str) -> dict[str, Any]:
    return {"mask": {"fields": [*fields]}}


@pytest.mark.parametrize(
    ("where", "steps", "told"),
    [
        (None, [mask("body")], []),
        ("kind = 'metric'", [mask("body")],
         ["0.mask: records of kind metric have no body"]),
        ("kind in ('span', 'metric') and service = 'or'", [{"drop": ["severity_text"]}],
         ["0.drop: records of kind metric and span have no severity_text"]),
        ("kind = 'metric' or severity_number > 9", [{"drop": ["body"]}], []),
        ("attributes.kind = 'metric'", [mask("body")], []),
        ("name = 'kind = ' || 'metric'", [mask("body")], []),
        ("ifnull(kind = 'metric', true)", [mask("body")], []),
        ("(kind = 'metric') = false", [mask("body")], []),
        ("kind = 'log'", [{"drop": ["attributes.user.*"]}, mask("attributes.user.email")],
         ["1.mask: step 0 has taken attributes.user.email away"]),
        (None, [{"drop": ["attributes"]}, {"drop": ["attributes.*"]}],
         ["1.drop: step 0 has taken attributes.* away"]),
        (None, [{"select": ["body", "attributes.a"]}, mask("attributes.b", "attributes.a.c")],
         ["1.mask: step 0 keeps no attributes.b"]),
        (None, [{"rename": {"attributes.a": "attributes.b"}}, mask("attributes.a", "attributes.b")],
         ["1.mask: step 0 has taken attributes.a away"]),
        (None, [{"drop": ["attributes.b"]}, {"rename": {"attributes.a": "attributes.b"}},
                {"drop": ["attributes.b"]}], []),
    ],
)  # fmt: skip
def test_validate_and_a_run_that_checks_tell_which_steps_can_match_nothing(
    tmp_path: Path, started: SimpleNamespace, where: str | None, steps: list[Any], told: list[str]
) -> None:
    started.spark.createDataFrame = lambda *_: Column()
    route = {"name": "all", "transforms": steps, "sinks": ["lake"]}
    route |= {"where": where} if where else {}
    notes = [f"but routes.0.transforms.{it}; this step changes nothing there" for it in told]
    checked = run(tmp_path, "--check", "--config", routes=[route])
    assert [it for it in checked.stderr.splitlines() if it.startswith("but ")] == notes
    done = run(tmp_path, "validate", "--quiet", routes=[route])
    assert done.exit_code == 0
    assert done.stderr.splitlines() == notes


def test_while_spark_starts_it_is_said_what_is_waited_for(
    tmp_path: Path, started: SimpleNamespace
) -> None:
    started.spark.createDataFrame = lambda *_: Column()
    done = run(tmp_path, "validate", routes=CONDITION)
    assert done.stderr.splitlines() == [
        "starts Spark to check conditions of routes, which takes some seconds …",
        "Spark runs; checks conditions: 1 …",
    ]
    valid = f"{tmp_path}/job.yaml is valid: 1 route, 1 sink\n"
    assert done.stdout == valid
    quiet = run(tmp_path, "validate", "--quiet", routes=CONDITION)
    assert (quiet.stdout, quiet.stderr) == (valid, "")
    assert run(tmp_path, "validate").stderr == "", "nothing takes long"


def test_a_run_with_an_end_says_what_it_waits_for(
    tmp_path: Path, started: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    started.spark.createDataFrame = lambda *_: Column()
    # What is said before a run is meant; a run against a logd is in the live tests.
    monkeypatch.setattr(bounded_run_module, "first_state", lambda *_: LogState({}, {}))
    said: list[str] = []
    job = load(tmp_path, streams=["logs", "traces"])
    with bounded_run(job, needs_lock=False, tell=said.append):
        assert said == [
            "looks for logs, traces in logd at 127.0.0.1:9293 …",
            "starts Spark, which takes some seconds …",
            "Spark runs",
        ]


@pytest.mark.parametrize("options", [["--json"], ["--quiet"], []])
def test_a_preview_for_machines_says_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    def told(*_: Any, tell: Any, **__: Any) -> None:
        tell("starts")
        raise ConfigError("seen", fix="none")

    monkeypatch.setattr(bounded_run_module, "bounded_run", told)  # the command's own part is meant
    said = run(tmp_path, "preview", *options).stderr
    assert said == ("" if options else "starts\n") + "error: seen\n  fix: none\n"
