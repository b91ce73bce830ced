"""Which directory the commands for spools and quarantines take; that no other is touched."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.collector.cli.main import cli
from penstock.logd.storage import CommitLog, LogConfig


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    for name in ("spool", "spool-urgent", "quarantine"):
        CommitLog.open(tmp_path / "collector" / name, LogConfig()).close()
    return tmp_path / "collector"


@pytest.mark.parametrize(
    ("command", "place"),
    [
        ("spool ls", ""),
        ("spool ls", "spool"),
        ("spool check", "spool-urgent"),
        ("quarantine ls", ""),
        ("quarantine show", "quarantine"),
    ],
)
def test_the_data_directory_will_do_and_what_is_in_it(
    data_dir: Path, command: str, place: str
) -> None:
    done = CliRunner().invoke(cli, [*command.split(), str(data_dir / place)])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    "command", ["spool ls", "spool cat", "spool check", "spool repair", "quarantine ls",
                "quarantine show", "quarantine replay"]
)  # fmt: skip
@pytest.mark.parametrize("place", [".", "collector/lost", "other/quarantine", "other/spool"])
def test_another_directory_is_refused_and_left_as_it_is(
    tmp_path: Path, data_dir: Path, command: str, place: str
) -> None:
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    before = sorted(tmp_path.rglob("*"))
    done = CliRunner().invoke(cli, [*command.split(), str(tmp_path / place)])
    assert done.exit_code == 64
    assert "is neither a collector's data directory nor its" in done.output
    assert sorted(tmp_path.rglob("*")) == before
    assert data_dir.exists()
