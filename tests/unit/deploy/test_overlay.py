"""A user's own settings over those of the launcher: what is merged how, and what is refused."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from penstock.collector.config import CollectorConfig
from penstock.deploy.console.config import ConsoleConfig
from penstock.deploy.up.layout import Layout
from penstock.deploy.up.overlay import LauncherSettings, check_overlay, launcher_settings, merged
from penstock.deploy.up.preflight import read_overlay
from penstock.deploy.up.topology import (
    Topology,
    addresses,
    default_ports,
    free_ports,
    launch_topology,
    listeners,
    logd_parts,
    part_documents,
    write_configs,
)
from penstock.logd.config import LogdConfig
from penstock.router.job.config import JobConfig
from penstock.service import ConfigError

ROOT = Path(__file__).resolve().parents[3]

TREES = st.recursive(
    st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("base", "own", "both"),
    [
        ({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}}, {"a": 1, "b": {"c": 2, "d": 3}}),
        ({"a": 1, "b": 2}, {"b": None}, {"a": 1}),
        ({"a": {"b": 1}}, {"a": 2}, {"a": 2}),
        ([{"name": "x", "v": 1}, 7], [{"name": "x", "v": 2}, 8], [{"name": "x", "v": 2}, 7, 8]),
        (
            [{"type": "unix"}],
            [{"type": "otlp", "http": None}],
            [{"type": "unix"}, {"type": "otlp", "http": None}],
        ),
        (["logs"], ["orders"], ["logs", "orders"]),
    ],
)
def test_settings_are_merged(base: Any, own: Any, both: Any) -> None:
    assert merged(base, own) == both


@given(TREES, TREES)
def test_what_is_merged_is_not_changed_and_nothing_laid_over_changes_nothing(
    base: Any, own: Any
) -> None:
    before = (repr(base), repr(own))
    merged(base, own)
    assert (repr(base), repr(own)) == before
    assert merged({"k": base}, {}) == {"k": base}
    assert merged({}, {"k": own}) == {"k": own}


@pytest.mark.parametrize(
    ("overlay", "says"),
    [
        ({"spark": {}}, "spark: not a part; there are logd, collector, router"),
        ({"logd": 3}, "logd: a mapping of settings is expected"),
        ({"router": {"admin": "x"}}, "router.admin: penstock up decides this"),
        ([], "the file holds a mapping of logd, collector, router"),
    ],
)
def test_what_is_no_overlay_is_refused(overlay: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check_overlay(overlay)


def test_a_file_that_is_refused_is_named(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("logd: {data_dir: /tmp}\n")
    with pytest.raises(ConfigError, match=r"own.yaml: logd.data_dir: penstock up decides this"):
        read_overlay(path)


def test_the_parts_are_configured_with_it(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.config.mkdir()
    overlay = {
        "logd": {"streams": [{"name": "orders", "subject": "orders.>"}]},
        "router": {
            "sinks": {"problems": None},
            "routes": [{"name": "problems", "sinks": ["lake"]}],
        },
    }
    ports = free_ports(default_ports(logd_parts(3)))
    write_configs(Topology(layout, ports, nodes=3, overlay=overlay))
    for part in logd_parts(3):
        written = yaml.safe_load((layout.config / f"{part}.yaml").read_text())
        assert [one["name"] for one in written["streams"]][-2:] == ["audit", "orders"]
    router = yaml.safe_load((layout.config / "router.yaml").read_text())
    assert list(router["sinks"]) == ["lake"]
    assert [route["name"] for route in router["routes"]] == ["everything", "problems"]
    assert yaml.safe_load((layout.config / "collector.yaml").read_text())["sources"]


def test_the_settings_that_trace_penstock_itself_are_as_the_document_has_them(
    tmp_path: Path,
) -> None:
    text = (ROOT / "docs" / "OPERATING.md").read_text()
    section = text.partition("### Traces of Penstock itself")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("    ")]
    overlay = yaml.safe_load("\n".join(lines))
    check_overlay(overlay)
    topology = Topology(Layout(tmp_path), default_ports(logd_parts(1)), overlay=overlay)
    topology.layout.config.mkdir()
    write_configs(topology)
    for part, model in (
        ("collector", CollectorConfig), ("logd", LogdConfig), ("router", JobConfig),
        ("console", ConsoleConfig),
    ):  # fmt: skip
        document = yaml.safe_load((topology.layout.config / f"{part}.yaml").read_text())
        config: Any = model.model_validate(document)
        assert config.tracing.sample == 0.1, part
    collector = CollectorConfig.model_validate(
        yaml.safe_load((topology.layout.config / "collector.yaml").read_text())
    )
    assert "unix" in [source.type for source in collector.sources], "others are still there"
    assert "otlp" in [source.type for source in collector.sources]


@pytest.mark.parametrize(
    "own",
    [
        {"collector": {"sources": None}},
        {"collector": {"sources": "otlp"}},
        {"collector": {"sources": ["otlp", None]}},
        {"collector": {"sources": {"otlp": {}}}},
        {"router": {"sinks": None}},
        {"router": {"sinks": ["lake"]}},
        {"router": {"sinks": {"lake": "parquet"}}},
        {"router": {"sinks": {"lake": ["parquet"]}}},
    ],
)
def test_settings_of_another_shape_are_for_their_part_to_refuse(
    tmp_path: Path, own: dict[str, Any]
) -> None:
    """Its message names the key; the launcher's own words were an unforeseen error's."""
    layout = Layout(tmp_path)
    topology = launch_topology(layout, nats_url=None, nodes=1, overlay=own)
    assert "console" in addresses(topology)
    assert set(listeners(topology)) >= {"nats", "console"}
    ((part, settings),) = own.items()
    ((key, value),) = settings.items()
    document = next(one for name, _, one in part_documents(topology) if name == part)
    if value is None:
        assert key not in document


def test_the_launchers_own_settings_have_defaults_and_bounds() -> None:
    assert launcher_settings({}) == LauncherSettings(ports_from=None, log_max_bytes=64 << 20)
    own = {"ports_from": 65_436, "log_max_bytes": 1024}
    assert launcher_settings({"launcher": own}) == LauncherSettings(**own)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("ports_from", 1023, "ports_from: a whole number from 1024 to 65436 is expected"),
        ("ports_from", 65_437, "ports_from: a whole number from 1024 to 65436 is expected"),
        ("ports_from", "8000", "ports_from: a whole number from 1024 to 65436 is expected"),
        ("log_max_bytes", 1023, "log_max_bytes: a whole number of at least 1024 is expected"),
        ("log_max_bytes", True, "log_max_bytes: a whole number of at least 1024 is expected"),
        ("ports", 8000, "ports: not a key; there are ports_from, log_max_bytes"),
    ],
)
def test_a_launchers_setting_that_is_not_allowed_is_named(key: str, value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"launcher.{said}")):
        check_overlay({"launcher": {key: value}})


def test_a_launch_without_settings_imports_no_pydantic() -> None:
    program = "import penstock.deploy.up.launch, sys; print('pydantic' in sys.modules)"
    command = [sys.executable, "-P", "-c", program]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said == "False\n"
