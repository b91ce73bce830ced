"""The configuration: the sample is valid, mistakes are named."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from click.testing import CliRunner
from pydantic import BaseModel, TypeAdapter, ValidationError

from penstock.collector.cli.main import cli
from penstock.collector.config import CollectorConfig
from penstock.collector.registry import SOURCES, TRANSFORMS
from penstock.service import ConfigError, load_config

SAMPLE = Path(__file__).parents[3] / "collector" / "collector.yaml"


def load(tmp_path: Path, **keys: object) -> CollectorConfig:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({"data_dir": "/x", "sources": [{"type": "stdin"}]} | keys))
    return load_config(CollectorConfig, path, env_prefix="PENSTOCK_COLLECTOR", environ={})


def test_the_sample_is_valid_and_can_be_checked() -> None:
    result = CliRunner().invoke(cli, ["--config", str(SAMPLE), "--check"])
    assert result.exit_code == 0, result.output
    assert "forward" in result.output


def test_every_key_is_on_the_page_of_the_configuration() -> None:
    readme = Path("docs/collector/configuration.md").read_text()
    keys = set(CollectorConfig.model_fields) | {"max_bytes", "when_full", "ack_timeout_s"}
    assert {key for key in keys if key not in readme} == set()


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({"subject_prefix": "a.>"}, "subject_prefix"),
        ({"sources": []}, "sources"),
        ({"sources": [{"type": "carrier_pigeon"}]}, "sources.0"),
        ({"sources": [{"type": "forward"}]}, "listen"),
        ({"sources": [{"type": "host_metrics"}, {"type": "host_metrics"}]}, "its own `name`"),
        ({"spool": {"when_full": "drop_middle"}}, "spool.when_full"),
        ({"spool": {"when_full": {"log": "block"}}}, "spool.when_full"),
        ({"nats": {"url": "http://x"}}, "nats.url"),
        (
            {"nats": {"url": "nats://user:pass/word@host"}},
            "nats.url: must name a server",
        ),
        ({"nats": {"key_file": "x.key"}}, "`key_file` is of no use without `cert_file`"),
        ({"batch": {"age": 1}}, "batch.age"),
    ],
)
def test_a_mistake_is_named_with_its_place(
    tmp_path: Path, keys: dict[str, object], where: str
) -> None:
    with pytest.raises(ConfigError, match="fix: ") as caught:
        load(tmp_path, **keys)
    assert where in str(caught.value)


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    """All models that a type is made of."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
        for field in kind.model_fields.values():
            yield from _models(field.annotation)
    for part in get_args(kind):
        yield from _models(part)


ROOTS = (
    CollectorConfig,
    *(kind.settings for registry in (SOURCES, TRANSFORMS) for kind in registry.kinds()),
)
PATHS = sorted(
    (f"{model.__name__}.{name}", field.rebuild_annotation())
    for model in {one for root in ROOTS for one in _models(root)}
    for name, field in model.model_fields.items()
    if "Path" in str(field.rebuild_annotation())
    or name in ("include", "exclude", "command", "units")
)


def test_every_option_that_is_a_path_is_known_to_the_next_test() -> None:
    names = {name for name, _ in PATHS}
    assert names >= {
        "CollectorConfig.data_dir", "CollectorConfig.admin_socket", "NatsSection.ca_file",
        "AdminAccess.token_file", "TracingSection.ca_file", "TlsSection.key_file",
        "UnixSettings.path", "ForwardSettings.path", "FileSettings.include",
        "PrometheusSettings.ca_file", "TableSection.file",
    }  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), PATHS, ids=[name for name, _ in PATHS])
def test_a_path_that_no_file_can_have_is_refused_when_it_is_read(name: str, kind: Any) -> None:
    """Or the process would end with a failure of its own where it opens it."""
    adapter = TypeAdapter(kind)
    is_list = "list" in str(kind)
    may_be_empty = not name.endswith(("path", "file", "dir", "include"))
    for text in ("/a\0b", "")[: 2 - may_be_empty]:
        with pytest.raises(ValidationError, match=r"NUL|must not be empty"):
            adapter.validate_python([text] if is_list else text)


def test_audit_records_are_only_dropped_where_they_are_named(tmp_path: Path) -> None:
    everything = load(tmp_path, spool={"when_full": "drop_oldest"}).spool
    assert [everything.policy(kind) for kind in ("logs", "audit")] == ["drop_oldest", "block"]
    named = load(tmp_path, spool={"when_full": {"audit": "drop_newest"}}).spool
    assert [named.policy(kind) for kind in ("logs", "audit")] == ["block", "drop_newest"]


def test_sources_are_named_after_their_type(tmp_path: Path) -> None:
    config = load(tmp_path, sources=[{"type": "stdin"}, {"type": "host_metrics", "name": "hm"}])
    assert [source.name for source in config.sources] == ["stdin", "hm"]


def test_secrets_are_hidden(tmp_path: Path) -> None:
    config = load(tmp_path, nats={"password": "hunter2"})
    assert "hunter2" not in str(config.model_dump(mode="json"))


def test_sources_lists_every_type() -> None:
    result = CliRunner().invoke(cli, ["sources"])
    assert result.exit_code == 0
    for kind in ("unix", "stdin", "file", "forward", "host_metrics"):
        assert f"{kind}: " in result.output
    assert os.linesep
