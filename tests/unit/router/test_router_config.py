"""Jobs as data."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from penstock.router.cli.inspect import picture
from penstock.router.cli.main import cli
from penstock.router.job.config import JobConfig, Spark
from penstock.router.job.permissions import unreadable
from penstock.router.read.offsets import Offsets, StreamPartition
from penstock.router.sinks.http.sink import HttpSink
from penstock.router.sinks.parquet.sink import ParquetSink
from penstock.router.sinks.registry import known_types
from penstock.router.spark.session import at_launch, session_settings
from penstock.router.streaming.batches import logd_options
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


def _lake(path: str, **keys: Any) -> dict[str, Any]:
    return {"sinks": {"lake": {"type": "parquet", "path": path, **keys}}}


def load(directory: Path, **keys: Any) -> JobConfig:
    path = directory / "job.yaml"
    path.write_text(yaml.safe_dump(JOB | keys))
    return load_config(JobConfig, path, env_prefix="PENSTOCK_ROUTER", environ={})


def test_the_sample_job_is_valid_and_drawn() -> None:
    job = load_config(JobConfig, SAMPLE, env_prefix="PENSTOCK_ROUTER", environ={})
    text = picture(job)
    assert "severity_number >= 17 or status_code = 'ERROR' -> console" in text
    assert "severity_number              int" in text


def test_a_job_reads_the_partitions_that_are_assigned_to_it(tmp_path: Path) -> None:
    streams = JOB["streams"]
    chosen = {name: [0, 3] for name in streams}
    job = load(tmp_path, source={"assign": chosen})
    options = logd_options(job, Offsets({}))
    assert json.loads(options["assign"]) == chosen
    assert "subscribe" not in options
    assert job.subscription.partitions == {StreamPartition(s, n) for s in streams for n in (0, 3)}
    for wrong in ({}, {"other": [0]}, chosen | {"other": [0]}, {name: [-1] for name in streams}):
        with pytest.raises(ConfigError, match=r"assign"):
            load(tmp_path, source={"assign": wrong})


def test_sinks_are_told_apart_by_type(tmp_path: Path) -> None:
    job = load(
        tmp_path,
        routes=[{"name": "all", "sinks": ["lake", "hook"]}],
        sinks=JOB["sinks"]
        | {"hook": {"type": "http", "url": "http://x/y", "headers": {"Authorization": "hush"}}},
    )
    assert isinstance(job.sinks["lake"], ParquetSink)
    assert isinstance(job.sinks["hook"], HttpSink)
    assert "hush" not in show_config(job)


def test_values_of_sinks_and_times_may_be_in_files(tmp_path: Path) -> None:
    for name, held in {"url": "http://x/y\n", "size": "64KiB\n", "at": "2026-01-31\n"}.items():
        (tmp_path / name).write_text(held)
    given = {name: {"file": str(tmp_path / name)} for name in ("url", "size", "at", "none")}
    hook = {"type": "http", "url": given["url"], "batch": {"max_bytes": given["size"]}}
    keys: dict[str, Any] = {"routes": [{"name": "all", "sinks": ["lake", "hook"]}]}
    keys["starting_offsets"] = given["at"]
    job = load(tmp_path, **keys, sinks=JOB["sinks"] | {"hook": hook})
    assert job.starting_offsets == datetime(2026, 1, 31, tzinfo=UTC)
    assert isinstance(job.sinks["hook"], HttpSink)
    assert job.sinks["hook"].batch.max_bytes == 65_536
    assert yaml.safe_load(show_config(job))["sinks"]["hook"]["batch"]["max_bytes"] == given["size"]
    hook["url"] = given["none"]
    with pytest.raises(ConfigError, match=r"sinks\.hook\.url: .*none: cannot be read: No such"):
        load(tmp_path, **keys, sinks=JOB["sinks"] | {"hook": hook})


def test_settings_of_spark_that_are_secrets_are_not_shown(tmp_path: Path) -> None:
    conf = {"spark.hadoop.fs.s3a.secret.key": "hush", "spark.cores.max": "2"}
    job = load(tmp_path, spark={"conf": conf})
    assert "hush" not in show_config(job)
    assert "spark.cores.max: '2'" in show_config(job)
    assert job.spark.conf == conf


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
        ({"trigger": {"max_records": 0}}, "trigger.max_records"),
        ({"job": "Not A Name"}, "job"),
        ({"checkpoint_dir": "/var/a\0b"}, "checkpoint_dir: holds a NUL"),
        ({"checkpoint_dir": "s3://b/x"}, "checkpoint_dir: must be a directory of this machine"),
        ({"checkpoint_dir": "hdfs://n/x"}, "checkpoint_dir: must be a directory of this machine"),
        ({"work_dir": "hdfs://n/x"}, "work_dir: must be a directory of this machine"),
        ({"dead_letter_dir": "s3://b/x"}, "dead_letter_dir: must be a directory of this machine"),
        (_lake("s3://b/x"), "sinks.lake.path: must be a directory of this machine"),
        (_lake("s3://b/x"), "or one of HDFS (hdfs://namenode:8020/lake)"),
        (_lake("s3://b/x"), "; the sink `s3` writes to a bucket"),
        (_lake("hdfs:///x"), "sinks.lake.path: 'hdfs:///x' does not say which namenode"),
        (_lake("hdfs://bob@n:1/x"), "sinks.lake.path: 'hdfs://bob@n:1/x' names a user"),
        (_lake("hdfs://n:x/y"), "sinks.lake.path: 'hdfs://n:x/y' is no URL: Port"),
        (_lake("hdfs://n:1/x?y=1"), "sinks.lake.path: 'hdfs://n:1/x?y=1' has a character"),
        (_lake("/x", hdfs={}), "sinks.lake: hdfs: it is for a path that begins with hdfs://"),
        (
            _lake("hdfs://n:1/x", hdfs={"principal": "a@B"}),
            "sinks.lake.hdfs: principal and keytab: one without the other",
        ),
        ({"streams": ["logs", "a\0b"]}, "streams.1: holds a NUL"),
        ({"trigger": {"interval_s": float("inf")}}, "trigger.interval_s"),
        ({"trigger": {"interval_s": 1e12}}, "trigger.interval_s"),
        ({"connect_timeout_s": float("inf")}, "connect_timeout_s"),
        ({"source": {"retry_timeout_s": float("nan")}}, "source.retry_timeout_s"),
        ({"logd": "nowhere"}, "logd"),
        ({"starting_offsets": {"logs": {"zero": 1}}}, "starting_offsets: 'logs'"),
        ({"starting_offsets": {"lgos": {"0": 1}}}, "starting_offsets: 'lgos' is not among"),
        ({"starting_offsets": 1_795_000_000}, "starting_offsets"),
        ({"starting_offsets": "1795000000"}, "starting_offsets"),
        ({"starting_offsets": "2026-02-30"}, "starting_offsets: must be earliest, latest, a time"),
        ({"starting_offsets": {"logs": {"0": "x"}}}, ": starting_offsets: must be earliest"),
        ({"source": {"rack": "a"}}, "source: rack: which replica is read from needs"),
        ({"source": {"rack": " ", "read_from": "replica"}}, "source.rack"),
        ({"source": {"read_from": "follower"}}, "source.read_from"),
        ({"source": {"subject": "a.>.b"}}, "source.subject: 'a.>.b' is no subject"),
        (
            {"trigger": {"min_offsets_per_trigger": 11, "max_records": 10}},
            "trigger: min_offsets_per_trigger (11) is above",
        ),
        ({"trigger": {"max_trigger_delay_s": 0}}, "trigger.max_trigger_delay_s"),
    ],
)
def test_a_mistake_is_refused_with_its_place(
    tmp_path: Path, keys: dict[str, Any], place: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, **keys)
    assert place in caught.value.reason
    assert "job.yaml" in caught.value.reason


def _only(name: str, **keys: Any) -> dict[str, Any]:
    """A job with one sink of that name."""
    sinks = {name: {"type": "console"}}
    return {"sinks": sinks, "routes": [{"name": "all", "sinks": [name]}], **keys}


@pytest.mark.parametrize(
    ("keys", "moved"),
    [
        (_only("work"), {"work_dir": "/var/tmp/x"}),
        (_only("spark", work_dir="/var/lib/x"), {"work_dir": "/var/tmp/x"}),
        (_only("lake", work_dir="/var/lib/x/lake/w"), {"work_dir": "/var/lib/x/lakes/w"}),
        (
            _only("lake", checkpoint_dir="/srv/spark/x", work_dir="/srv"),
            {"work_dir": "/var/tmp/x"},
        ),
        (_only("dead_letters"), {"dead_letter_dir": "/var/tmp/x"}),
        (_only("lake", dead_letter_dir="/var/lib/x"), {"dead_letter_dir": "/var/lib/letters"}),
        (_only("lake", dead_letter_dir="/var/lib/y/../x/lake"), {"dead_letter_dir": "/var/lib/y"}),
    ],
)
def test_a_sinks_directory_is_its_own(
    tmp_path: Path, keys: dict[str, Any], moved: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, **keys)
    (name,) = keys["sinks"]
    assert f"sinks.{name}: it keeps its progress in " in caught.value.reason
    assert load(tmp_path, **(keys | moved)).sinks


@pytest.mark.parametrize("name", ["lock", "format"])
def test_a_sink_is_not_named_as_a_file_of_the_checkpoint(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"sinks.{name}: a file in checkpoint_dir"):
        load(tmp_path, **_only(name))


def test_directories_are_the_same_by_whatever_link(tmp_path: Path) -> None:
    (tmp_path / "x" / "lake").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "x" / "lake")
    keys = {"checkpoint_dir": str(tmp_path / "x"), "work_dir": str(tmp_path / "link")}
    with pytest.raises(ConfigError, match=r"sinks.lake: .*where work_dir is"):
        load(tmp_path, **_only("lake", **keys))


def access(directory: Path) -> dict[str, Any]:
    return {"token_file": str(directory / "token")}


@pytest.mark.parametrize(
    ("spark", "ui"), [({}, False), ({"ui": True}, True), ({"master": "local[4]"}, False)]
)
def test_where_the_admin_door_asks_who_comes_sparks_page_is_off(
    tmp_path: Path, spark: dict[str, Any], ui: bool
) -> None:
    job = load(tmp_path, admin_access=access(tmp_path), spark=spark)
    assert (job.session.ui, job.spark.knows_its_own) == (ui, True)
    assert load(tmp_path).session.ui is True


@pytest.mark.parametrize(
    ("spark", "taken"),
    [
        ({}, False),
        ({"conf": {"spark.authenticate": "false"}}, False),
        ({"secret_file": "/etc/x"}, True),
        ({"conf": {"spark.authenticate": "true"}}, True),
    ],
)
def test_a_cluster_that_strangers_reach_is_refused_where_callers_must_be_known(
    tmp_path: Path, spark: dict[str, Any], taken: bool
) -> None:
    keys = {"spark": {"master": "spark://10.0.0.5:7077"} | spark}
    assert load(tmp_path, **keys).spark.knows_its_own is taken, "without admin_access: as it likes"
    moved = (
        load(tmp_path, admin_access=access(tmp_path), spark=spark | {"master": "local[2]"})
        if spark.get("conf", {}).get("spark.authenticate") != "false"
        else None
    )
    if taken:
        assert load(tmp_path, admin_access=access(tmp_path), **keys).spark.knows_its_own
        assert moved is not None
        assert moved.on_master("spark://a:1").spark.master == "spark://a:1"
        return
    with pytest.raises(ConfigError, match=r"spark\.secret_file"):
        load(tmp_path, admin_access=access(tmp_path), **keys)
    if moved is not None:
        with pytest.raises(ConfigError, match=r"spark\.secret_file"):
            moved.on_master("spark://a:1")


def test_a_clusters_secret_is_of_its_file_and_on_no_command_line(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    spark = Spark(master="spark://a:1", secret_file=secret, conf={"spark.hadoop.x.secret.key": "k"})
    with pytest.raises(ConfigError, match="No such file"):
        session_settings("x", spark, tmp_path)
    for held in ("one\ntwo\n", "one\0two"):
        secret.write_text(held)
        with pytest.raises(ConfigError, match="one line"):
            session_settings("x", spark, tmp_path)
    secret.write_text("hush\n")
    found = session_settings("x", spark, tmp_path)
    assert (found["spark.authenticate"], found["spark.authenticate.secret"]) == ("true", "hush")
    shown = at_launch(found)
    assert shown.keys() == found.keys() - {"spark.authenticate.secret", "spark.hadoop.x.secret.key"}
    assert not {"hush", "k"} & set(shown.values())


def test_workers_are_forked_by_the_routers_own_daemon_where_the_driver_runs_tasks(
    tmp_path: Path,
) -> None:
    daemon, own = "spark.python.daemon.module", "penstock.router.spark.worker_daemon"
    assert session_settings("x", Spark(master="local[2]"), tmp_path)[daemon] == own
    assert daemon not in session_settings("x", Spark(master="spark://127.0.0.1:1"), tmp_path)
    chosen = Spark(conf={daemon: "pyspark.daemon"})
    assert session_settings("x", chosen, tmp_path)[daemon] == "pyspark.daemon"


def test_java_gives_memory_of_malloc_back(tmp_path: Path) -> None:
    settings = session_settings("x", Spark(), tmp_path)
    assert '"-XX:TrimNativeHeapInterval=60000"' in settings["spark.driver.extraJavaOptions"]


def test_java_writes_no_figures_of_its_own(tmp_path: Path) -> None:
    settings = session_settings("x", Spark(), tmp_path)
    assert '"-XX:-UsePerfData"' in settings["spark.driver.extraJavaOptions"]


def test_java_has_one_compiler_unless_the_job_says_otherwise(tmp_path: Path) -> None:
    drivers, executors = (f"spark.{it}.defaultJavaOptions" for it in ("driver", "executor"))
    local = session_settings("x", Spark(), tmp_path)
    assert "TieredStopAtLevel=1" in local[drivers]
    assert executors not in local
    cluster = session_settings("x", Spark(master="spark://a:1"), tmp_path)
    assert "TieredStopAtLevel=1" in cluster[drivers]
    assert "TieredStopAtLevel=1" in cluster[executors]
    assert "TieredStopAtLevel" not in cluster["spark.executor.extraJavaOptions"]
    own = session_settings("x", Spark(conf={drivers: "-Xss2m"}), tmp_path)
    assert own[drivers] == "-Xss2m"


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
    assert shown >= {
        "delta",
        "iceberg",
        "kafka",
        "clickhouse",
        "datadog",
        "google_cloud_logging",
        "bigquery",
    }


@pytest.mark.parametrize(
    ("sink", "known"),
    [
        (
            {"type": "parquet", "path": "/x", "zip": 1},
            (
                "compaction, compression, hdfs, partition_by, partition_time, path, rate_limit,"
                " retention, type"
            ),
        ),
        ({"type": "splunk_hec", "url": "http://x", "token": {"fil": "/x"}}, "env, file, value"),
    ],
)
def test_a_key_that_a_sink_does_not_have_names_those_it_has(
    tmp_path: Path, sink: dict[str, Any], known: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, sinks={"lake": sink})
    assert caught.value.fix.endswith(f"known keys here: {known}")


def test_secrets_that_cannot_be_read_are_named_with_their_places(tmp_path: Path) -> None:
    hook = {"type": "splunk_hec", "url": "http://x", "token": {"file": str(tmp_path / "token")}}
    job = load(tmp_path, sinks={"lake": hook})
    assert list(unreadable(job)) == [
        f"sinks.lake.token: {tmp_path}/token: cannot be read: No such file or directory"
    ]
    said = CliRunner().invoke(cli, ["validate", str(tmp_path / "job.yaml")])
    assert said.exit_code == 0, "it is waited for"
    assert f"but sinks.lake.token: {tmp_path}/token: cannot be read" in said.output
    (tmp_path / "token").write_text("hush")
    assert not list(unreadable(job))
