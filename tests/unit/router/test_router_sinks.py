"""The registry of sinks: what a `type` stands for, third parties', and what the documents say."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner
from pydantic import BaseModel
from typing_extensions import override

from penstock.base.extras import install_command
from penstock.router.cli.main import cli
from penstock.router.sinks import (
    Guarantee,
    Replay,
    Sink,
    SinkConfig,
    SinkContext,
    make_sink,
    open_sink,
    registry,
)
from penstock.service import ConfigError
from tests.support.package_files import uninstall
from tests.unit.router.sink_rows import context, row, table
from tests.unit.router.test_router_config import JOB, load

PAGES = Path("docs/router")


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


Plugins = Callable[[str, str], None]


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plugins:
    """Installs another package, with a sink of a name that an object stands for."""
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def install(name: str, value: str) -> None:
        package = f"acme_{len([*site.iterdir()])}"
        about = site / f"{package}-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
        (about / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{name} = {value}\n")

    return install


def test_a_third_partys_sink_is_found_by_its_entry_point(plugins: Plugins, tmp_path: Path) -> None:
    plugins("pigeon", f"{__name__}:Pigeon")
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
        ([("pigeon", "no_such_module:Pigeon")], "cannot be loaded: ModuleNotFoundError: No"),
        (
            [("pigeon", "acme_boom:Pigeon")],
            "cannot be loaded: RuntimeError: boom; correct, upgrade",
        ),
        ([("pigeon", f"{__name__}:PAGES")], "is not a sink: it needs config_class"),
        ([("pigeon", f"{__name__}:Pigeon"), ("pigeon", "other:Pigeon")], "uninstall all but one"),
        (
            [("crow", f"{__name__}:Pigeon")],
            "no sink of type 'pigeon', only bigquery, clickhouse, console, crow",
        ),
    ],
)
def test_a_sink_that_cannot_be_used_is_refused_with_its_package(
    plugins: Plugins, tmp_path: Path, brought: list[tuple[str, str]], reason: str
) -> None:
    (tmp_path / "site-packages" / "acme_boom.py").write_text("raise RuntimeError('boom')")
    for name, value in brought:
        plugins(name, value)
    with pytest.raises(Exception, match=re.escape(reason)) as caught:
        load(tmp_path, sinks={"lake": {"type": "pigeon"}})
    assert "sinks.lake: " in str(caught.value)


def test_a_sink_that_cannot_be_loaded_is_named_and_hides_no_other(plugins: Plugins) -> None:
    plugins("crow", "no_such_module:Crow")
    plugins("pigeon", f"{__name__}:Pigeon")
    done = CliRunner().invoke(cli, ["sinks"])
    assert done.exit_code == 0, done.output
    assert "crow: the sink 'crow' of the package" in done.stdout
    assert "pigeon: Records on the leg of a bird." in done.stdout


def test_the_routers_own_names_cannot_be_taken_over(plugins: Plugins, tmp_path: Path) -> None:
    plugins("parquet", f"{__name__}:Pigeon")
    assert load(tmp_path).sinks["lake"].about().startswith("Parquet files in /var/lib/lake")
    assert registry.known_types().count("parquet") == 1


def test_the_effective_configuration_shows_every_key_of_a_sink(tmp_path: Path) -> None:
    shown = load(tmp_path).model_dump(mode="json")["sinks"]["lake"]
    limit = {"records_per_s": None, "bytes_per_s": None}
    compaction = {
        "enabled": None,
        "interval_s": 600.0,
        "after_s": 900.0,
        "target_bytes": 128 * 1024 * 1024,
        "keep_s": 900.0,
    }
    assert shown == JOB["sinks"]["lake"] | {
        "compaction": compaction,
        "compression": "zstd",
        "hdfs": None,
        "partition_by": None,
        "partition_time": "event",
        "retention": None,
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
    text = (PAGES / "sinks.md").read_text()
    inside = text.partition("<!-- sinks: generated -->\n")[2].partition("<!-- end -->")[0]
    said = CliRunner().invoke(cli, ["sinks", "--markdown"]).output
    assert inside == said, "put the output of `penstock router sinks --markdown` there"


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({"type": "kafka", "bootstrap_servers": "a:1", "topic": "t"}, "confluent_kafka"),
        ({"type": "nats", "subject": "out"}, "nats"),
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
    uninstall(monkeypatch, missing)
    with pytest.raises(ConfigError, match=re.escape(missing)) as caught:
        kind.sink(config, context(tmp_path))
    assert caught.value.fix == install_command(kind.name)


def _keys(model: type[BaseModel]) -> Iterator[str]:
    schema: dict[str, Any] = model.model_json_schema()
    for node in (schema, *schema.get("$defs", {}).values()):
        yield from node.get("properties", {})


@pytest.mark.parametrize("kind", [*registry.sink_kinds()], ids=lambda kind: kind.name)
def test_every_option_of_a_sink_is_documented(kind: registry.SinkKind) -> None:
    text = (PAGES / "sinks" / f"{kind.name}.md").read_text()
    assert [key for key in _keys(kind.config) if not re.search(rf"\b{key}\b", text)] == []
    assert kind.config.__doc__


HEADINGS = [
    "What it takes", "Minimal configuration", "Options", "Guarantee", "Errors", "Metrics",
]  # fmt: skip


@pytest.mark.parametrize("kind", [*registry.sink_kinds()], ids=lambda kind: kind.name)
def test_a_sinks_page_has_the_fixed_headings_and_a_configuration_that_is_one(
    kind: registry.SinkKind,
) -> None:
    text = (PAGES / "sinks" / f"{kind.name}.md").read_text()
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS
    assert kind.config.model_validate(_minimal(kind.name)).type == kind.name


def _minimal(name: str) -> dict[str, Any]:
    """The settings that a sink's page shows."""
    text = (PAGES / "sinks" / f"{name}.md").read_text()
    shown = text.partition("```yaml\n")[2].partition("```")[0]
    settings: dict[str, Any] = yaml.safe_load(shown)["sinks"]["it"]
    return settings


def _default_sections(kind: registry.SinkKind) -> dict[str, BaseModel]:
    """The sections that a sink has when none of them is given."""
    minimal = _minimal(kind.name)
    return {
        name: section
        for name, section in kind.config.model_validate(minimal)
        if isinstance(section, BaseModel) and name not in minimal
    }


@pytest.mark.parametrize("kind", [*registry.sink_kinds()], ids=lambda kind: kind.name)
def test_a_section_that_is_given_in_part_keeps_the_sinks_other_defaults(
    kind: registry.SinkKind,
) -> None:
    defaults = _default_sections(kind)
    assert "rate_limit" in defaults
    for name, section in defaults.items():
        for key, value in section.model_dump().items():
            given = kind.config.model_validate(_minimal(kind.name) | {name: {key: value}})
            assert getattr(given, name) == section, (name, key)


@pytest.mark.parametrize("kind", [*registry.sink_kinds()], ids=lambda kind: kind.name)
def test_the_command_and_the_page_show_the_defaults_that_hold(kind: registry.SinkKind) -> None:
    said = f"\n{CliRunner().invoke(cli, ['sinks']).output}".partition(f"\n{kind.name}: ")[2]
    own = re.split(r"\n\S", said, maxsplit=1)[0]
    page = (PAGES / "sinks" / f"{kind.name}.md").read_text()
    defaults = {
        f"{name}.{key}": "none" if value is None else str(value)
        for name, section in _default_sections(kind).items()
        for key, value in section.model_dump(mode="json").items()
    }
    lines = re.findall(r"^    (\S+) .* default (\S+)", own, re.MULTILINE)
    assert defaults.items() <= dict(lines).items()
    rows = re.findall(r"^\| `(\S+)` \|.*\| `?([^|`]+?)`? \|[^|]*\|$", page, re.MULTILINE)
    assert defaults.items() <= dict(rows).items()


def test_iceberg_refuses_a_size_to_merge_files_to_for_its_library_merges_none(
    tmp_path: Path,
) -> None:
    table = {"table": "a.b", "catalog": {"type": "rest"}}
    keeps = {"maintenance": {"keep_hours": 1}}
    load(tmp_path, sinks={"lake": {"type": "iceberg"} | table | keeps})
    merges = {"maintenance": {"target_bytes": 1024 * 1024}}
    load(tmp_path, sinks={"lake": {"type": "delta", "table": "/x"} | merges})
    with pytest.raises(ConfigError) as told:
        load(tmp_path, sinks={"lake": {"type": "iceberg"} | table | merges})
    assert "sinks.lake.maintenance.target_bytes: there is no such key" in told.value.reason
    assert "remove the key" in told.value.fix
    assert told.value.fix.endswith("known keys here: interval_s, keep_hours")


def test_a_sink_whose_library_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uninstall(monkeypatch, "deltalake")
    delta = load(tmp_path, sinks={"lake": {"type": "delta", "table": "/x"}}).sinks["lake"]
    for make in (make_sink, open_sink):
        with pytest.raises(ConfigError, match=r"sinks\.lake: this sink needs") as told:
            make(delta, context(tmp_path))
        assert told.value.fix == install_command("delta")
