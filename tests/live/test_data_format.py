"""Every part looks first which version wrote its directory, and leaves alone what is newer."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from penstock.base.clock import SystemClock
from penstock.base.errors import ExitCode
from penstock.collector.checkpoint.recovery import Sizes, open_data_directory
from penstock.logd.config import LogdConfig
from penstock.logd.daemon import lock_directory, service_error
from penstock.logd.errors import RefusedError
from penstock.router.checkpoint.local import JobLock
from penstock.service.data_format import FILE_NAME, DataFormat, DataFormatError

pytestmark = pytest.mark.live

SIZES = Sizes(1 << 24, 1 << 24, 1 << 24)
NOWHERE = "nats://127.0.0.1:9"


def logd_config(directory: Path) -> LogdConfig:
    return LogdConfig.model_validate({"data_dir": directory, "nats": {"url": NOWHERE}})


def open_logd(directory: Path) -> None:
    lock_directory(logd_config(directory)).release()


def open_collector(directory: Path) -> None:
    opened = open_data_directory(directory, SIZES, where="test")
    for journal in (opened.spool, opened.urgent, opened.quarantine):
        asyncio.run(journal.close())
    opened.lock.release()


def open_router(directory: Path) -> None:
    JobLock(directory, wait_s=0, clock=SystemClock()).release()


OPENING = {"logd": open_logd, "collector": open_collector, "router": open_router}


@pytest.mark.parametrize("kind", OPENING)
def test_a_directory_is_stamped_and_opened_again(tmp_path: Path, kind: str) -> None:
    OPENING[kind](tmp_path)
    OPENING[kind](tmp_path)
    assert (tmp_path / FILE_NAME).read_text().startswith(f"penstock {kind} 1 ")


@pytest.mark.parametrize("kind", OPENING)
def test_a_newer_directory_is_refused_and_nothing_in_it_is_touched(
    tmp_path: Path, kind: str
) -> None:
    stamp = tmp_path / FILE_NAME
    stamp.write_text(f"penstock {kind} 2 7.1.0\n")
    with pytest.raises(DataFormatError, match=r"(?s)data format 2.*start Penstock 7\.1\.0 or"):
        OPENING[kind](tmp_path)
    assert list(tmp_path.iterdir()) == [stamp]


@pytest.mark.parametrize("kind", OPENING)
def test_each_refuses_the_directory_of_another(tmp_path: Path, kind: str) -> None:
    other = next(name for name in OPENING if name != kind)
    DataFormat(other).open(tmp_path)
    with pytest.raises(DataFormatError, match=f"holds the data of a {other}"):
        OPENING[kind](tmp_path)


COMMANDS: dict[str, Callable[[Path], dict[str, object]]] = {
    "logd": lambda directory: {"data_dir": str(directory), "nats": {"url": NOWHERE}},
    "collector": lambda directory: {
        "name": "a",
        "data_dir": str(directory),
        "nats": {"url": NOWHERE},
        "sources": [{"type": "stdin", "name": "in"}],
    },
}


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_daemon_ends_with_78_and_says_which_release_to_start(tmp_path: Path, kind: str) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    (directory / FILE_NAME).write_text(f"penstock {kind} 9 9.0.0\n")
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(COMMANDS[kind](directory)))
    done = subprocess.run(
        [sys.executable, "-m", f"penstock.{kind}", "--config", config],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == ExitCode.CONFIG, done.stderr
    assert "start Penstock 9.0.0 or later" in done.stderr
    assert [path.name for path in directory.iterdir()] == [FILE_NAME]


def test_newer_metadata_of_a_cluster_is_not_blamed_on_the_names_of_nodes(tmp_path: Path) -> None:
    error = RefusedError("UNKNOWN_FORMAT", "the log has format 2; this version reads 1")
    told = service_error(error, logd_config(tmp_path), tmp_path / "logd.yaml")
    assert "a later Penstock wrote it" in str(told)
    assert told.exit_code == ExitCode.CONFIG
