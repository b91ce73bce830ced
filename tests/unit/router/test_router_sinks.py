"""The registry of sinks: what a `type` stands for, third parties', and what the documents say."""

import importlib
import re
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pydantic import BaseModel
from typing_extensions import override

from penstock.base.extras import install_command
from penstock.router.cli import cli
from penstock.router.sinks import (
    Guarantee,
    Replay,
    Sink,
    SinkConfig,
    SinkContext,
    extras,
    make_sink,
    open_sink,
)
from penstock.router.sinks import table as registry
from penstock.service import ConfigError
from tests.unit.router.sink_rows import context, row, table
from tests.unit.router.test_router_config import JOB, load

README = Path("router/README.md")


class PigeonConfig(SinkConfig):
    """Records on the leg of a bird."""

    type: Literal["pigeon"]
    loft: str = "home"


class Pigeon(Sink):
    """Forgets what it is told."""

    config_class = PigeonConfig
    guarantee = Guarantee(Replay.EFFECTIVELY_ONCE, "birds are numbered", within="a day")
    columns: tuple[str, ...] = ("value",)

    def __init__(self, config: PigeonConfig, context: SinkContext) -> None:
        self.loft = config.loft

    @override
    def open(self) -> None: ...

    @override
    def write(self, rows: pa.Table) -> None: ...


def entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, registry.GROUP)


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """What other packages bring; a test fills it."""
    found: list[EntryPoint] = []
    monkeypatch.setattr(registry, "entry_points", lambda group: found)
    return found


def test_a_third_partys_sink_is_found_by_its_entry_point(
    plugins: list[EntryPoint], tmp_path: Path
) -> None:
    plugins.append(entry("pigeon", f"{__name__}:Pigeon"))
    sinks = {"lake": {"type": "pigeon", "loft": "roof"}}
    job = load(tmp_path, sinks=sinks)
    sink = make_sink(job.sinks["lake"], context(tmp_path))
    assert isinstance(sink, Pigeon)
    assert sink.loft == "roof"
    said = CliRunner().invoke(cli, ["sinks"]).output
    assert "pigeon: Records on the leg of a bird." in said
    assert "on replay: effectively once within a day: birds are numbered" in said
    assert re.search(r"loft +string +default home", said)


@pytest.mark.parametrize(
    ("brought", "reason"),
    [
        ([("pigeon", "no_such_module:Pigeon")], "cannot be loaded: No module named"),
        ([("pigeon", f"{__name__}:README")], "is not a sink: it needs config_class"),
        ([("pigeon", f"{__name__}:Pigeon"), ("pigeon", "other:Pigeon")], "uninstall all but one"),
        (
            [("crow", f"{__name__}:Pigeon")],
            "no sink of type 'pigeon', only bigquery, clickhouse, console, crow",
        ),
    ],
)
def test_a_sink_that_cannot_be_used_is_refused_with_its_package(
    plugins: list[EntryPoint], tmp_path: Path, brought: list[tuple[str, str]], reason: str
) -> None:
    plugins += [entry(name, value) for name, value in brought]
    with pytest.raises(Exception, match=re.escape(reason)) as caught:
        load(tmp_path, sinks={"lake": {"type": "pigeon"}})
    assert "sinks.lake: " in str(caught.value)


def test_the_routers_own_names_cannot_be_taken_over(
    plugins: list[EntryPoint], tmp_path: Path
) -> None:
    plugins.append(entry("parquet", f"{__name__}:Pigeon"))
    assert load(tmp_path).sinks["lake"].about().startswith("Parquet files in /var/lib/lake")
    assert registry.known_types().count("parquet") == 1


def test_the_effective_configuration_shows_every_key_of_a_sink(tmp_path: Path) -> None:
    shown = load(tmp_path).model_dump(mode="json")["sinks"]["lake"]
    limit = {"records_per_s": None, "bytes_per_s": None}
    assert shown == JOB["sinks"]["lake"] | {
        "compression": "zstd",
        "hdfs": None,
        "rate_limit": limit,
    }


def test_a_reach_belongs_to_effectively_once() -> None:
    with pytest.raises(ValueError, match="within"):
        Guarantee(Replay.AT_LEAST_ONCE, "again", within="a day")
    with pytest.raises(ValueError, match="within"):
        Guarantee(Replay.EFFECTIVELY_ONCE, "again")


def test_a_sink_that_knows_no_better_previews_its_rows(tmp_path: Path) -> None:
    (shown,) = Pigeon(PigeonConfig(type="pigeon"), context(tmp_path)).preview(
        table([row(1, service="é"), row(2)])
    )
    first, second = shown.body.splitlines()
    assert '"service": "é"' in first
    assert '"offset": 2' in second
    assert "status_code" not in first
    assert shown.records == 2


def test_the_documents_table_is_what_the_sinks_say() -> None:
    text = README.read_text()
    inside = text.partition("<!-- sinks: generated -->\n")[2].partition("<!-- end -->")[0]
    said = CliRunner().invoke(cli, ["sinks", "--markdown"]).output
    assert inside == said, "put the output of `penstock router sinks --markdown` there"


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({"type": "kafka", "servers": "a:1", "topic": "t"}, "kafka_connection"),
        ({"type": "nats", "subject": "out"}, "nats_connection"),
        ({"type": "postgres", "dsn": "host=a"}, "psycopg"),
        ({"type": "s3", "url": "http://127.0.0.1:1/lake"}, "botocore.auth"),
    ],
    ids=lambda it: it["type"] if isinstance(it, dict) else it,
)
def test_a_library_that_is_not_installed_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], missing: str
) -> None:
    kind = registry.sink_kind(settings["type"])
    config = kind.config.model_validate(settings)
    found = importlib.import_module

    def not_there(name: str) -> Any:
        if name.endswith(missing):
            raise ModuleNotFoundError(f"No module named {missing!r}")
        return found(name)

    monkeypatch.setattr(importlib, "import_module", not_there)
    with pytest.raises(ConfigError, match=re.escape(missing)) as caught:
        kind.sink(config, context(tmp_path))
    assert caught.value.fix == install_command(kind.name)


def _keys(model: type[BaseModel]) -> Iterator[str]:
    schema: dict[str, Any] = model.model_json_schema()
    for node in (schema, *schema.get("$defs", {}).values()):
        yield from node.get("properties", {})


@pytest.mark.parametrize("kind", [*registry.sink_kinds()], ids=lambda kind: kind.name)
def test_every_option_of_a_sink_is_documented(kind: registry.SinkKind) -> None:
    text = README.read_text()
    assert [key for key in _keys(kind.config) if not re.search(rf"\b{key}\b", text)] == []
    assert kind.config.__doc__


def test_a_sink_whose_library_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(extras, "importlib", SimpleNamespace(import_module=missing))
    delta = load(tmp_path, sinks={"lake": {"type": "delta", "table": "/x"}}).sinks["lake"]
    for make in (make_sink, open_sink):
        with pytest.raises(ConfigError, match=r"sinks\.lake: this sink needs") as told:
            make(delta, context(tmp_path))
        assert told.value.fix == install_command("delta")
