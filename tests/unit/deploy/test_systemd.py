"""The systemd unit: what systemd itself says of it, and that it promises what it should."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[3] / "deploy" / "systemd" / "penstock-collector.service"
NEW_IN_253 = ("notify-reload", "ReloadSignal")


def values(key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", UNIT.read_text(), re.MULTILINE)


def test_it_runs_as_its_own_user_without_rights_and_reloads_by_signal() -> None:
    assert values("User") == ["penstock"]
    assert values("CapabilityBoundingSet") == [""]
    assert values("NoNewPrivileges") == ["yes"]
    assert values("ProtectSystem") == ["strict"]
    assert values("StateDirectory") == ["penstock-collector"]
    assert (values("Type"), values("ReloadSignal")) == (["notify-reload"], ["SIGHUP"])
    assert values("SuccessExitStatus") == ["75"], "a drain that was cut short is no failure"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_finds_nothing_wrong_with_it(tmp_path: Path) -> None:
    text = UNIT.read_text().replace("/opt/penstock/bin/python", sys.executable)
    unit = tmp_path / UNIT.name
    unit.write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    said = [line for line in result.stderr.splitlines() if UNIT.name in line]
    assert [line for line in said if not any(word in line for word in NEW_IN_253)] == []
    assert result.returncode == 0, result.stderr
