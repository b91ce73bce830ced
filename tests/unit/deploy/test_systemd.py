"""The systemd units: what systemd itself says of them, and that they promise what they should."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from penstock.deploy import site
from penstock.specs import environment
from tests.support.debian import installed

UNITS = Path(__file__).parents[3] / "deploy" / "systemd"
NAMES = ("penstock-collector.service", "penstock-logd.service", "penstock-router@.service")


def values(name: str, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", (UNITS / name).read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_as_its_own_user_without_rights(name: str) -> None:
    assert values(name, "User") == ["penstock"]
    assert values(name, "CapabilityBoundingSet") == [""]
    assert values(name, "NoNewPrivileges") == ["yes"]
    assert values(name, "ProtectSystem") == ["strict"]
    assert values(name, "StateDirectory") == [re.split(r"[@.]", name)[0].replace("-", "/")]
    assert values(name, "SuccessExitStatus") == ["75"], "a drain that was cut short is no failure"
    assert "78" in values(name, "RestartPreventExitStatus")[0].split()


def test_every_unit_is_looked_at() -> None:
    assert sorted(path.name for path in UNITS.glob("*.service")) == sorted(NAMES)


def test_the_collector_reloads_by_signal() -> None:
    unit = "penstock-collector.service"
    assert values(unit, "Type") == ["notify"]
    assert values(unit, "ExecReload") == ["/bin/kill -HUP $MAINPID"]


@pytest.mark.parametrize("name", NAMES)
def test_it_imports_nothing_from_the_working_directory(name: str) -> None:
    assert values(name, "ExecStart")[0].startswith("/opt/penstock/bin/python -P -m ")


def test_applications_find_the_collector_where_the_unit_and_the_sample_have_its_socket() -> None:
    """One path, which an application need not be told."""
    (directory,) = values("penstock-collector.service", "RuntimeDirectory")
    sample = yaml.safe_load((UNITS.parents[1] / "collector/collector.yaml").read_text())
    paths = [source["path"] for source in sample["sources"] if source["type"] == "unix"]
    assert paths == [environment.USUAL_SOCKET] == [f"/run/{directory}/collector.sock"]
    assert str(site.RUN / "collector.sock") == environment.USUAL_SOCKET


def test_a_damaged_log_is_not_started_again_and_again() -> None:
    assert values("penstock-logd.service", "RestartPreventExitStatus") == ["65 78"]


@pytest.mark.parametrize("name", NAMES)
def test_systemd_finds_nothing_wrong_with_it(name: str, tmp_path: Path) -> None:
    """Of Debian 12's systemd 252 and of newer ones, whichever is here."""
    analyze = installed("systemd-analyze", package="systemd")
    text = (UNITS / name).read_text().replace("/opt/penstock/bin/python", sys.executable)
    unit = tmp_path / name
    unit.write_text(text)
    asked = unit if "@" not in name else tmp_path / name.replace("@", "@lake")
    if asked != unit:
        asked.symlink_to(unit)
    command = [analyze, "verify", "--man=no", str(asked)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert [line for line in result.stderr.splitlines() if re.split(r"[@.]", name)[0] in line] == []
    assert result.returncode == 0, result.stderr
