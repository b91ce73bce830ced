"""A whole job into tables of lakes, killed when its files are written and its commits are not."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.fault_door import RESET, Answered, Asked
from tests.support.lake_cases import DeltaCase, IcebergCase, LakeCase
from tests.support.logd import Logd
from tests.support.moto_server import BUCKET, MotoRun
from tests.support.router import (
    STREAMS,
    RouterJob,
    job_of_logs,
    log_line,
    publish,
    span_line,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

LET_THROUGH = 2
"""Commits of each table: that of its making, and one of records."""


@pytest.fixture
def cases(tmp_path: Path) -> Iterator[list[LakeCase]]:
    made: list[LakeCase] = [DeltaCase(tmp_path), IcebergCase(tmp_path)]
    yield made
    for case in made:
        case.close()


class HeldCommits:
    """A store that keeps a commit in hand from the third one on, and loses it."""

    def __init__(self, case: LakeCase) -> None:
        self.reached = threading.Event()
        self._case = case
        self._seen: set[str] = set()
        case.door.rule = self._rule

    def _rule(self, asked: Asked) -> Answered | None:
        if not self._case.is_commit(asked):
            return None
        self._seen.add(asked.path.partition("?")[0])  # one of several parts has the same
        if len(self._seen) <= LET_THROUGH:
            return None
        self.reached.set()
        self._case.door.hung.wait(300)
        return RESET

    def let_go(self) -> None:
        """From now on it takes every commit."""
        self._case.door.rule = lambda asked: None


def written(case: LakeCase) -> set[str]:
    """The data files in the store, read by any program."""
    assert isinstance(case.door.backend, MotoRun)
    below = "telemetry/" if isinstance(case, DeltaCase) else "warehouse/"
    keys = (key for key in case.door.backend.objects() if key.startswith(below))
    return {f"s3://{BUCKET}/{key}" for key in keys if key.endswith(".parquet")}


def read(case: Any) -> set[str]:
    """The data files of the table's newest version."""
    table = case.table()
    if isinstance(case, DeltaCase):
        return set(table.file_uris())
    return set(table.inspect.files().column("file_path").to_pylist())


def test_a_job_that_is_killed_between_files_and_commits_has_each_record_once(
    cases: list[LakeCase], tmp_path: Path, nats_url: str
) -> None:
    settings = {case.type: {"type": case.type, **case.keys(case.door.url)} for case in cases}
    values = [log_line(number) for number in range(2000)]
    spans = [span_line(number) for number in range(300)]
    with Logd(tmp_path / "logd", nats_url, STREAMS) as logd:
        publish(nats_url, "telemetry.logs.x", values)
        publish(nats_url, "telemetry.traces.x", spans)
        job = RouterJob(
            tmp_path / "router",
            logd.fetch,
            sinks=settings,
            routes=[{"name": "all", "sinks": list(settings)}],
            trigger={"interval_s": 0.1, "max_records": 400},
        )
        held = [HeldCommits(case) for case in cases]
        job.daemon.start(within_s=180)
        for case, it in zip(cases, held, strict=True):
            wait_until(it.reached.is_set, within_s=240, what=f"a commit of {case.type}")
        job.daemon.kill()
        drafts = [written(case) - read(case) for case in cases]
        before = [case.rows().num_rows for case in cases]
        for it in held:
            it.let_go()
        job.daemon.start("--until-caught-up", within_s=180)
        assert job.daemon.wait(within_s=240) == 0, job.daemon.log()[-3000:]
    for case, draft, rows in zip(cases, drafts, before, strict=True):
        assert draft, case.type
        assert 0 < rows < len(values) + len(spans), case.type
        assert sorted(case.rows()["value"].to_pylist()) == sorted(values + spans), case.type
        assert not draft & read(case), case.type


@pytest.mark.parametrize("kind", [DeltaCase, IcebergCase])
def test_a_worker_killed_before_it_tells_of_its_file_leaves_each_record_once(
    tmp_path: Path, nats_url: str, kind: type[LakeCase]
) -> None:
    """Spark runs its task again, which writes another file: the first one is in no version."""
    killed: list[int] = []
    values = [log_line(number) for number in range(2000)]
    keys = {"spark": {"master": "local[2,4]"}, "trigger": {"interval_s": 0.1, "max_records": 400}}
    with closing(kind(tmp_path)) as case:
        sinks = {"table": {"type": case.type, **case.keys(case.door.url)}}
        with job_of_logs(tmp_path, nats_url, values, sinks, **keys) as job:

            def kills_after_taking(asked: Asked) -> Answered | None:
                """The driver writes the first batch, for which there is no table yet."""
                completes = asked.method == "POST" and "uploadId=" in asked.path
                if killed or not completes or ".parquet" not in asked.path:
                    return None
                worker = job.client(asked.connection, case.door.address)
                if worker.pid == job.daemon.pid:
                    return None
                case.door.backend.handle(asked)
                killed.append(worker.pid)
                worker.kill()
                return RESET

            case.door.rule = kills_after_taking
            job.daemon.start("--until-caught-up", within_s=180)
            assert job.daemon.wait(within_s=240) == 0, job.daemon.log()[-3000:]
        assert killed
        rows = case.rows()
        assert sorted(rows["value"].to_pylist()) == sorted(values)
        assert len(rows["incarnation"].unique()) == 1
        assert written(case) - read(case), "the killed task's file"
