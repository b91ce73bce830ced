"""Sources and transforms of installed packages, by their type, or refused by package."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from penstock.collector.agent.agent import Agent
from penstock.collector.cli.main import cli
from penstock.collector.config import CollectorConfig
from penstock.collector.registry import SOURCES, TRANSFORMS
from tests.support.collector_agent import TestLog, config_of, running
from tests.support.waiting import wait_until_async

EXAMPLE = Path("examples/collector/package")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, installed by pip into a directory of its own."""
    directory = tmp_path_factory.mktemp("installed")
    source = shutil.copytree(EXAMPLE, directory / "source")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--target", str(directory / "site"), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return directory / "site"


@pytest.fixture
def package(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(installed)
    yield installed
    sys.modules.pop("acme_penstock", None)


def add_package(
    directory: Path, name: str, *, group: str = "transforms", entry: str, text: str = ""
) -> None:
    """Lay another installed package down: its metadata, and its module."""
    metadata = directory / f"{name}-2.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.0\n")
    (metadata / "entry_points.txt").write_text(f"[penstock.collector.{group}]\n{entry}\n")
    (directory / f"{name}.py").write_text(text)


@pytest.mark.timeout(120)
async def test_a_package_brings_a_source_and_a_transform(package: Path, tmp_path: Path) -> None:
    (tmp_path / "queue").mkdir()
    (tmp_path / "queue" / "a").write_bytes(b"12345")
    source = {"type": "directory_size", "name": "queue", "path": str(tmp_path / "queue")}
    steps: Any = {"templates": {"type": "url_template", "inputs": ["queue"]}}
    config = config_of(tmp_path, sources=[source], transforms=steps)
    log = TestLog()
    agent = Agent(config, Path("collector.yaml"), load=lambda: config, make_publisher=log.publisher)
    async with running(tmp_path, agent):
        await wait_until_async(lambda: len(log.records) >= 2)
    values = {record["name"]: record["value"] for record in log.records[:2]}
    assert values == {"directory.files": 1, "directory.size": 5}


def test_its_configuration_is_checked_and_tested_as_any(package: Path) -> None:
    for command in ("validate", "test"):
        found = CliRunner().invoke(cli, [command, str(EXAMPLE / "collector.yaml")])
        assert (found.exit_code, found.exception) == (0, None), found.output
    listed = CliRunner().invoke(cli, ["sources"]).output
    assert "directory_size: The number and the bytes of a directory's files" in listed
    assert "(package acme-penstock 1.0)" in listed


def test_what_is_wrong_in_its_settings_is_named_with_the_key(package: Path, tmp_path: Path) -> None:
    document = yaml.safe_load((EXAMPLE / "collector.yaml").read_text())
    document["sources"][0]["intervall_s"] = 5
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(document))
    found = CliRunner().invoke(cli, ["validate", str(tmp_path / "c.yaml")])
    assert found.exit_code != 0
    assert "sources.0.intervall_s" in found.output
    assert "did you mean" in found.output or "interval_s" in found.output.replace("intervall_s", "")


def test_without_the_package_the_type_is_unknown_and_those_there_are_are_named() -> None:
    with pytest.raises(ValueError, match=r"no source of type 'directory_size', only .*exec, file"):
        SOURCES.kind("directory_size")


def test_two_packages_with_one_type_are_refused_and_both_are_named(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_package(tmp_path, "other", entry="url_template = other:Any")
    monkeypatch.syspath_prepend(tmp_path)
    told = r"'url_template' come with acme-penstock 1\.0 and other 2\.0; uninstall all but one"
    with pytest.raises(ValueError, match=told):
        TRANSFORMS.kind("url_template")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("raise SystemError('old')", "SystemError: old"),
        ("", "AttributeError"),
        ("class Broken: ...", "is not a transform: it lacks settings, from_settings, apply, notes"),
        (
            "class Broken:\n    settings = dict\n    from_settings = apply = notes = None",
            "Broken.settings must derive from TransformSettings",
        ),
    ],
)
def test_a_broken_package_is_named_with_the_reason_and_hinders_no_other(
    text: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_package(tmp_path, "broken_package", entry="broken = broken_package:Broken", text=text)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        with pytest.raises(ValueError, match="uninstall the package") as caught:
            TRANSFORMS.kind("broken")
        assert "'broken' of the package broken_package 2.0 cannot be loaded" in str(caught.value)
        assert told in str(caught.value)
        assert "broken: the transform 'broken'" in CliRunner().invoke(cli, ["transforms"]).output
        unix = {"type": "unix", "path": "/a.sock"}
        assert CollectorConfig.model_validate({"data_dir": "/d", "sources": [unix]}).sources
    finally:
        sys.modules.pop("broken_package", None)


def test_a_type_of_the_collector_cannot_be_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_package(tmp_path, "taker", group="sources", entry="unix = taker:Unix")
    monkeypatch.syspath_prepend(tmp_path)
    assert SOURCES.kind("unix").package == "penstock"
