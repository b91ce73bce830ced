"""The search page in real Chromium, where the only job was stopped and answers by its files."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import Watched, check_accessible, watched
from tests.support.console import running_console
from tests.support.logd import Logd
from tests.support.nats_server import running_nats_server
from tests.support.router import RouterJob, log_line, publish
from tests.support.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

COUNT = 40
SPARK_MS = 120_000 * PATIENCE
"""Milliseconds in which a console may start Spark and answer."""


@dataclass
class Stopped:
    """logd with 40 records, of which each fourth is an error, and a job that delivered those."""

    logd: Logd
    job: RouterJob


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stopped]:
    directory = tmp_path_factory.mktemp("stopped")
    streams = [{"name": "logs", "subject": "telemetry.logs.>"}]
    with ExitStack() as stack:
        nats_url = stack.enter_context(running_nats_server(directory / "nats"))
        logd = stack.enter_context(Logd(directory / "logd", nats_url, streams))
        values = [log_line(it, severity=9 if it % 4 else 17) for it in range(COUNT)]
        filling = stack.enter_context(ThreadPoolExecutor(1))  # Playwright has this thread's loop
        filling.submit(publish, nats_url, "telemetry.logs.checkout", values).result()
        job = RouterJob(directory / "router", logd.fetch, streams=["logs"])
        job.config["routes"] = [
            {"name": "errors", "where": "severity_number >= 17", "sinks": ["lake"]},
        ]
        stack.callback(job.daemon.close)
        job.daemon.start(within_s=120)
        wait_until(lambda: job.committed().get("logs") == COUNT, within_s=120, what="delivery")
        assert job.daemon.stop(within_s=60) == 0
        yield Stopped(logd, job)


@contextmanager
def page_of(browser: Browser, home: Path, stopped: Stopped) -> Iterator[Watched]:
    files = [str(stopped.job.lake.parent / "router.yaml")]
    parts = {"router": f"http://{stopped.job.config['admin']}"}
    more: dict[str, Any] = {"logd": stopped.logd.fetch, "search": {"job_files": files}}
    with (
        running_console(home, parts, **more) as console,
        watched(browser, console.address) as seen,
    ):
        seen.page.goto(f"http://{console.address}/#/search")
        expect(seen.page.locator("main h1")).to_have_count(1)
        yield seen


def search(page: Page, **fields: str) -> None:
    for label, words in fields.items():
        page.get_by_label(label).fill(words)
    page.get_by_label("From", exact=True).select_option("earliest")
    page.get_by_role("button", name="Search").click()


def test_a_stopped_job_answers_by_its_files_where_the_search_says_so(
    browser: Browser, tmp_path: Path, stopped: Stopped
) -> None:
    with page_of(browser, tmp_path, stopped) as seen:
        page = seen.page
        search(page, Text="order 8 ")
        lacks = page.get_by_role("region", name="What the answer lacks")
        expect(lacks).to_contain_text("1 part could not be asked")
        row = page.locator(".found tbody tr")
        expect(row).to_contain_text("no job reads it")

        page.get_by_label("Jobs that do not run").select_option("yes")
        search(page)
        expect(row).to_contain_text("1 delivered", timeout=SPARK_MS)
        expect(lacks).to_contain_text("test: it does not run; ")
        expect(lacks).not_to_contain_text("could not be asked")
        expect(lacks).to_contain_text(f"{stopped.job.checkpoint_dir} says what became of records")
        check_accessible(seen, "search-stopped-job")

        row.click()
        way = page.get_by_role("list", name="The way of record logs/0/8")
        expect(way).to_contain_text("test/lake")
        expect(way).to_contain_text("route errors")
        found = re.search(rf"{re.escape(str(stopped.job.lake))}\S+\.parquet", way.inner_text())
        assert found is not None
        assert 8 in pq.read_table(found[0], columns=["offset"])["offset"].to_pylist()

        address = page.url
        page.goto("about:blank")
        page.goto(address)  # as a bookmark
        expect(way).to_contain_text("test/lake", timeout=SPARK_MS)
        expect(way).not_to_contain_text("could not be asked")


def test_a_condition_is_read_without_a_job_that_runs(
    browser: Browser, tmp_path: Path, stopped: Stopped
) -> None:
    with page_of(browser, tmp_path, stopped) as seen:
        page = seen.page
        search(page, Condition="severity_number >= 17 and body like 'order 1%'")
        status = page.locator("#main .head [role=status]")
        expect(status).to_contain_text("no job answers, and a job has to read the condition")

        page.get_by_label("Jobs that do not run").select_option("yes")
        search(page)
        rows = page.locator(".found tbody tr")
        expect(rows).to_have_count(2, timeout=SPARK_MS)
        for row, number in zip(rows.all(), (12, 16), strict=True):
            expect(row).to_contain_text(f"order {number} ")
            expect(row).to_contain_text("1 delivered")
