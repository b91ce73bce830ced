"""A minute of the soak of the appliance: `penstock up`, faults, everything arrives once."""

import json
from pathlib import Path

import pytest

from tests.appliance_soak.__main__ import main

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]


def test_a_short_soak_holds(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    options = ["--minutes", "0.4", "--every", "8", "--nodes", "1", "--rate", "100"]
    code = main([*options, "--dir", str(tmp_path), "--json", str(report)])
    found = json.loads(report.read_text())
    assert code == 0, found
    assert found["faults"] >= 2
    assert found["records"]["acked"] > 100
