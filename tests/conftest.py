"""Fixtures for every kind of test; which tests a run takes; which CI lets be skipped."""

import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import HealthCheck, settings
from typing_extensions import override

from tests.support.nats_server import running_nats_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# Images of containers forbid Python to keep what it compiles. Then each process that a test starts
# would compile all modules of its part again, which takes it half a second of CPU time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How long an example takes to make says how busy the machine is, not whether the code is right.
settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")


@pytest.fixture(autouse=True)
def _context_of_logs() -> Iterator[None]:
    """What a daemon of another test has bound to every log line of this process is gone."""
    structlog.contextvars.clear_contextvars()
    yield
    structlog.contextvars.clear_contextvars()


@pytest.fixture
def nats_url(tmp_path: Path) -> Iterator[str]:
    """The URL of a real nats-server that belongs to this test alone."""
    with running_nats_server(tmp_path / "nats") as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """A real Chromium, started once for each module of tests."""
    from tests.support.browser import chromium

    with chromium() as found:
        yield found


ROOT = Path(__file__).resolve().parents[1]
GUARANTEES = ROOT / "docs" / "guarantees.md"

SKIPS_IN_CI = {
    "PENSTOCK_TEST_SPLUNK_ACK_TOKEN names no token": "the product cannot be had without a licence",
    "kubectl is not here": "no package index that CI reaches has it",
}
"""Reasons for which a test may be skipped where CI runs, each with why nothing can be done."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("penstock")
    group.addoption(
        "--promised", action="store_true",
        help="of the live tests, only those that docs/guarantees.md names first for a promise",
    )  # fmt: skip
    group.addoption(
        "--rest", action="store_true",
        help="live tests that --promised leaves out",
    )  # fmt: skip
    group.addoption("--shard", metavar="K/N", help="only part K of N")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Every worker imports every file, but for those of which this run takes nothing."""
    if not collection_path.is_file():
        return None
    if (
        (shard := config.getoption("--shard"))
        and collection_path.stem not in LONGEST
        and collection_path not in files_of_shard(shard, tuple(config.args))
    ):
        return True
    if config.getoption("--promised") and collection_path.parent.name == "live":
        text = collection_path.read_text()
        return not any(name in text for name in first_proofs(GUARANTEES.read_text())) or None
    return None


@cache
def files_of_shard(shard: str, arguments: tuple[str, ...]) -> frozenset[Path]:
    """Of the files of tests that arguments name, or their directories hold, those of a shard."""
    part, count = shard_of(shard)
    named = [Path(argument.partition("::")[0]).absolute() for argument in arguments]
    files = {
        file for path in named for file in ([path] if path.is_file() else path.rglob("test_*.py"))
    }
    return frozenset(sorted(files)[part - 1 :: count])


LONGEST = (
    "test_end_to_end", "test_router_kills", "test_router_job", "test_router_replays",
    "test_docs_walkthroughs", "test_router_cluster", "test_router_store", "test_logd_faults",
    "test_logd_faults_disk", "test_collector_faults", "test_collector_rotation",
    "test_collector_delivery", "test_collector_without_nats", "test_bench", "test_demo",
)  # fmt: skip
"""Files of live tests that take minutes. Their tests share nothing, so each may go to another shard
and to another worker."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """A file stays on one worker, for its fixtures, but for those of `LONGEST`."""
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        @override
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return nodeid if Path(file).stem in LONGEST else file

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what this run is not for, and begin with what takes longest."""

    def is_simulated(item: pytest.Item) -> bool:
        return item.path.parent.name == "sim"

    def is_live(item: pytest.Item) -> bool:
        return item.get_closest_marker("live") is not None

    def name_of(item: pytest.Item) -> str:
        return getattr(item, "originalname", item.name)

    proofs = set(first_proofs(GUARANTEES.read_text()))

    def is_promised(item: pytest.Item) -> bool:
        return not is_live(item) or name_of(item) in proofs

    def rank(item: pytest.Item) -> tuple[bool, bool, bool]:
        return (item.path.stem not in LONGEST, not is_live(item), not is_simulated(item))

    chosen = items
    if config.getoption("--promised"):
        chosen = [item for item in chosen if is_promised(item)]
    if config.getoption("--rest"):
        chosen = [item for item in chosen if not is_promised(item)]
    if shard := config.getoption("--shard"):
        part, count = shard_of(shard)
        dealt = sorted(item.nodeid for item in chosen if item.path.stem in LONGEST)
        others = set(dealt) - set(dealt[part - 1 :: count])
        chosen = [item for item in chosen if item.nodeid not in others]
    if len(chosen) < len(items):
        kept = set(chosen)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = sorted(chosen, key=rank)


def first_proofs(guarantees: str) -> Iterator[str]:
    """Of each promise, a row of a table or a paragraph, the first test that is named."""
    for promise in re.split(r"\n(?=\|)|\n\s*\n|\n(?=- )", guarantees):
        yield from re.findall(r"`(test_\w+)`", promise)[:1]


def shard_of(text: str) -> tuple[int, int]:
    """K and N of `K/N`, with 1 <= K <= N."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    part, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= part <= count:
        raise pytest.UsageError(f"--shard {text}: write it as K/N with K from 1 to N, as in 2/4")
    return part, count


class _Skips:
    """Skips of a run in CI, where each is a failure but for those of `SKIPS_IN_CI`."""

    def __init__(self) -> None:
        self.unlisted: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
            if not any(known in reason for known in SKIPS_IN_CI):
                self.unlisted.append(f"{report.nodeid}: {reason}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.unlisted and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self.unlisted:
            terminalreporter.write_line(f"SKIPPED IN CI, which is a failure: {line}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    """Judge skips in CI; once, where workers' reports come together."""
    if os.environ.get("CI") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Skips())
