"""Jobs as data."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.router.config import JobConfig
from penstock.router.plan import picture
from penstock.router.sinks.http import HttpSink
from penstock.router.sinks.parquet import ParquetSink
from penstock.router.sinks.table import known_types
from penstock.service import ConfigError, load_config, show_config

SAMPLE = Path("router/job.yaml")

JOB: dict[str, Any] = {
    "job": "demo",
    "logd": "127.0.0.1:9293",
    "streams": ["logs"],
    "checkpoint_dir": "/var/lib/x",
    "routes": [{"name": "all", "sinks": ["lake"]}],
    "sinks": {"lake": {"type": "parquet", "path": "/var/lib/lake"}},
}


def load(directory: Path, **keys: Any) -> JobConfig:
    path = directory / "job.yaml"
    path.write_text(yaml.safe_dump(JOB | keys))
    return load_config(JobConfig, path, env_prefix="PENSTOCK_ROUTER", environ={})


def test_the_sample_job_is_valid_and_drawn() -> None:
    job = load_config(JobConfig, SAMPLE, env_prefix="PENSTOCK_ROUTER", environ={})
    text = picture(job)
    assert "severity_number >= 17 or status_code = 'ERROR' -> console" in text
    assert "severity_number              int" in text


def test_sinks_are_told_apart_by_type(tmp_path: Path) -> None:
    job = load(
        tmp_path,
        routes=[{"name": "all", "sinks": ["lake", "hook"]}],
        sinks=JOB["sinks"]
        | {"hook": {"type": "http", "url": "http://x/y", "headers": {"Authorization": "secret"}}},
    )
    assert isinstance(job.sinks["lake"], ParquetSink)
    assert isinstance(job.sinks["hook"], HttpSink)
    assert "secret" not in show_config(job)


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ({"streems": []}, "streems"),
        ({"sinks": {"lake": {"type": "parquet", "path": "/x", "zip": 1}}}, "sinks.lake.zip"),
        ({"sinks": {"lake": {"type": "parqet"}}}, "sinks.lake: there is no sink of type 'parqet'"),
        ({"sinks": {"lake": {"path": "/x"}}}, "sinks.lake: `type` must say"),
        ({"routes": [{"name": "all", "sinks": ["lakes"]}]}, "routes.0.sinks"),
        ({"routes": [{"name": "a", "sinks": ["lake"]}] * 2}, "routes: 'a' stands there twice"),
        ({"unmatched": {"sinks": ["sea"]}}, "unmatched.sinks"),
        ({"sinks": JOB["sinks"] | {"other": {"type": "console"}}}, "sinks.other: no route"),
        ({"trigger": {"records_max": 0}}, "trigger.records_max"),
        ({"job": "Not A Name"}, "job"),
        ({"logd": "nowhere"}, "logd"),
        ({"starting_offsets": {"logs": {"zero": 1}}}, "starting_offsets: 'logs'"),
        ({"starting_offsets": {"lgos": {"0": 1}}}, "starting_offsets: 'lgos' is not among"),
    ],
)
def test_a_mistake_is_refused_with_its_place(
    tmp_path: Path, keys: dict[str, Any], place: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, **keys)
    assert place in caught.value.reason
    assert "job.yaml" in caught.value.reason


BEFORE, SIDE_BY_SIDE, SWAPPED = sorted(Path("examples/backends").glob("*.yaml"))


def test_the_example_of_two_backends_changes_only_what_it_says() -> None:
    for path in (BEFORE, SIDE_BY_SIDE, SWAPPED):
        load_config(JobConfig, path, env_prefix="PENSTOCK_ROUTER", environ={})
    before, beside, swapped = (
        yaml.safe_load(path.read_text()) for path in (BEFORE, SIDE_BY_SIDE, SWAPPED)
    )
    assert {key for key in before if before[key] != swapped[key]} == {"sinks"}
    assert before["sinks"]["lake"] == swapped["sinks"]["lake"]
    assert {key for key in before if before[key] != beside[key]} == {"routes", "sinks"}
    assert before["sinks"] == {k: v for k, v in beside["sinks"].items() if k != "candidate"}


EXAMPLES = sorted(Path("examples/sinks").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda it: it.stem)
def test_the_examples_of_sinks_are_jobs(path: Path) -> None:
    config = load_config(JobConfig, path, env_prefix="PENSTOCK_ROUTER", environ={})
    readme = (path.parent / "README.md").read_text()
    assert f"[{path.name}]({path.name})" in readme
    assert {it.type for it in config.sinks.values()} <= set(known_types())


def test_there_is_an_example_of_each_lake_bus_and_vendor() -> None:
    shown = {
        sink["type"]
        for path in EXAMPLES
        for sink in yaml.safe_load(path.read_text())["sinks"].values()
    }
    assert shown >= {"delta", "iceberg", "kafka", "clickhouse", "datadog"}
