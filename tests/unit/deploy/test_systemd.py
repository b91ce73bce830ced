"""The systemd units: what systemd itself says of them, and that they promise what they should."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[3] / "deploy" / "systemd"
NAMES = ("penstock-collector.service", "penstock-logd.service", "penstock-router@.service")
NEW_IN_253 = ("notify-reload", "ReloadSignal")


def values(name: str, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", (UNITS / name).read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_as_its_own_user_without_rights(name: str) -> None:
    assert values(name, "User") == ["penstock"]
    assert values(name, "CapabilityBoundingSet") == [""]
    assert values(name, "NoNewPrivileges") == ["yes"]
    assert values(name, "ProtectSystem") == ["strict"]
    assert values(name, "StateDirectory") == [re.split(r"[@.]", name)[0]]
    assert values(name, "SuccessExitStatus") == ["75"], "a drain that was cut short is no failure"
    assert "78" in values(name, "RestartPreventExitStatus")[0].split()


def test_every_unit_is_looked_at() -> None:
    assert sorted(path.name for path in UNITS.glob("*.service")) == sorted(NAMES)


def test_the_collector_reloads_by_signal() -> None:
    unit = "penstock-collector.service"
    assert (values(unit, "Type"), values(unit, "ReloadSignal")) == (["notify-reload"], ["SIGHUP"])


def test_a_damaged_log_is_not_started_again_and_again() -> None:
    assert values("penstock-logd.service", "RestartPreventExitStatus") == ["65 78"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_finds_nothing_wrong_with_it(name: str, tmp_path: Path) -> None:
    text = (UNITS / name).read_text().replace("/opt/penstock/bin/python", sys.executable)
    unit = tmp_path / name
    unit.write_text(text)
    asked = unit if "@" not in name else tmp_path / name.replace("@", "@lake")
    if asked != unit:
        asked.symlink_to(unit)
    command = ["systemd-analyze", "verify", "--man=no", str(asked)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    said = [line for line in result.stderr.splitlines() if re.split(r"[@.]", name)[0] in line]
    assert [line for line in said if not any(word in line for word in NEW_IN_253)] == []
    assert result.returncode == 0, result.stderr
