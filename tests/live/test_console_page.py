"""The console's page in real Chromium."""

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from playwright.sync_api import Browser, CDPSession, Page, expect

from penstock.deploy.console.config import ConsoleConfig
from penstock.deploy.console.daemon import Console
from penstock.deploy.console.poller import PAUSE_S_MAX
from penstock.deploy.console.web import PAGE
from penstock.logd.format.batch import Record
from tests.support.browser import Watched, check_accessible, watched
from tests.support.console import (
    NODES,
    FakeConsoleLog,
    FakePart,
    a_stage,
    a_status,
    a_stream,
    running_console,
)
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.live

STREAMS = 1_000
HOSTILE = "<img src=x onerror=alert(1)>"
SCRIPT = "<script>window.hacked=1</script>"
VIEWS = (
    "overview", "pipeline", "streams", "collectors", "routers", "specs", "search",
    "tail?stream=logs",
    "activity",
)  # fmt: skip
OUTAGE_MS = 5_000
"""What a quiet machine needs; `PATIENCE` is for one that does much else."""


@dataclass
class Pipeline:
    """Fake parts whose counters rise each time they are asked, and a console of them."""

    log: FakeConsoleLog
    parts: dict[str, FakePart] = field(default_factory=dict)
    console: Console | None = None
    replays: dict[str, Any] = field(default_factory=dict)
    token: str = ""
    _asked: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def address(self) -> str:
        assert self.console is not None
        return self.console.address

    def counted(self) -> int:
        with self._lock:
            self._asked += 500
            return self._asked

    def collector(self) -> dict[str, Any]:
        n = self.counted()
        account = {"received": n, "recovered": 0, "delivered": n - 5, "dropped": {}, "held": 5,
                   "difference": 0}  # fmt: skip
        sources = [a_stage("source/unix", n), a_stage(f"source/file:{HOSTILE}", n)]
        info = {"reconciliation": {"unix": account}, "spool": {"bytes": 950, "max_bytes": 1000}}
        return a_status("collector", "collector", *sources, info=info)

    def logd(self, name: str) -> dict[str, Any]:
        stages = [a_stage(f"stream/s{n}", self.counted()) for n in range(STREAMS // 10)]
        return a_status("logd", name, *stages)

    def router(self) -> dict[str, Any]:
        n = self.counted()
        lake, loki = a_stage("sink/lake", n), a_stage("sink/loki", n, detail={"dead_letters": 41})
        info = {"log": {"logs": n + 7}, "sinks": {
            "lake": {"committed": {"logs": n}, "restarts": 0, "problem": None},
            "loki": {"committed": {"logs": n}, "restarts": 2, "problem": f"HTTP 503 {SCRIPT}"},
        }}  # fmt: skip
        reasons = [f"sink/loki: {SCRIPT}"]
        info["replays"] = self.replays
        return a_status("router", "lake", lake, loki, info=info, health="degraded", reasons=reasons)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    streams = [a_stream(f"orders-{n}", n * 10, leader=NODES[n % 3]) for n in range(STREAMS)]
    lonely = structs.replace(streams[77].partitions[0], leader=None, isr=())
    streams[77] = structs.replace(streams[77], partitions=(lonely,))
    streams += [a_stream(name, 3) for name in ("logs", "__activity", HOSTILE)]
    body = json.dumps({"body": SCRIPT}).encode()
    event = {"kind": "stream.create", "by": {"name": HOSTILE}, "node": "logd-1", "facts": {"x": 1}}
    records = {
        "logs": [Record(f"telemetry.logs.{HOSTILE}", body, 10**18 + n) for n in range(5)],
        "__activity": [Record("__activity.stream.create", json.dumps(event).encode(), 10**18)],
    }
    made = Pipeline(FakeConsoleLog(streams, records))
    made.parts = {name: FakePart(lambda name=name: made.logd(name)) for name in NODES}  # type: ignore[misc]
    made.parts |= {"collector": FakePart(made.collector), "router": FakePart(made.router)}
    directory = tmp_path_factory.mktemp("console")
    urls = {name: part.url for name, part in made.parts.items()}
    with running_console(directory, urls, made.log, poll_interval_s=0.5) as made.console:
        made.token = (directory / "token").read_text().strip()
        yield made
    for part in made.parts.values():
        part.close()


@pytest.fixture
def seen(browser: Browser, pipeline: Pipeline) -> Iterator[Watched]:
    with watched(browser, pipeline.address) as seen:
        yield seen


def show(page: Page, pipeline: Pipeline, view: str) -> None:
    page.goto(f"http://{pipeline.address}/#/{view}")
    expect(page.locator("main h1")).to_have_count(1)


def test_the_picture_shows_live_rates_from_the_sources_to_the_sinks(
    seen: Watched, pipeline: Pipeline
) -> None:
    page = seen.page
    show(page, pipeline, "pipeline")
    for words in ("Sources", "Collector", "Log", "Router", "Sinks", "lake"):
        expect(page.locator(".picture svg")).to_contain_text(words)
    rate = page.locator(".picture .rate").first
    expect(rate).to_contain_text("/s")
    row = page.get_by_role("row", name="collector")
    before = row.inner_text()
    expect(row).not_to_have_text(before)  # it goes on by itself
    expect(page.locator(".picture .flow").first).to_be_visible()


def test_streams_say_who_leads_how_much_there_is_and_which_need_attention(
    seen: Watched, pipeline: Pipeline
) -> None:
    page = seen.page
    show(page, pipeline, "streams")
    expect(page.locator("#main .head p")).to_contain_text(f"{STREAMS + 3:,} partitions")
    page.get_by_label("only what needs attention").check()
    page.get_by_label("Show").fill("orders-7")
    row = page.locator("tbody tr", has_text="orders-77")
    expect(row).to_contain_text("leaderless")
    expect(page.locator("tbody tr:not(.spacer)")).to_have_count(1)
    page.get_by_label("only what needs attention").uncheck()
    page.get_by_label("Show").fill("orders-99")
    expect(page.locator("#main .head p")).to_contain_text("11 of 1,003")
    page.get_by_role("button", name="Records").click()
    expect(page.locator("tbody tr:not(.spacer)").first).to_contain_text("orders-999")
    page.locator("button.link", has_text="orders-999").click()
    facts = page.get_by_role("dialog")
    expect(facts).to_contain_text("logd-1, logd-2, logd-3")
    page.keyboard.press("Escape")
    expect(facts).to_have_count(0)


def processor_s(meter: CDPSession) -> float:
    """CPU time that the page's tasks have taken, in seconds."""
    metrics = meter.send("Performance.getMetrics")["metrics"]
    return float(next(it["value"] for it in metrics if it["name"] == "TaskDuration"))


def test_a_thousand_streams_are_fluent(seen: Watched, pipeline: Pipeline) -> None:
    """Only rows in sight are in the page, and taking news takes less than a frame or two."""
    page = seen.page
    show(page, pipeline, "streams")
    expect(page.locator("tbody tr:not(.spacer)").first).to_be_visible()
    assert page.locator("tbody tr").count() < 60
    port = page.locator(".table-port")
    port.evaluate("element => { element.scrollTop = element.scrollHeight; }")
    expect(page.locator("tbody tr", has_text="orders-999")).to_be_visible()
    assert page.locator("tbody tr").count() < 60
    meter = page.context.new_cdp_session(page)
    meter.send("Performance.enable", {"timeDomain": "threadTicks"})  # not what others use
    before_s = processor_s(meter)
    heard = page.evaluate(
        "() => new Promise(done => { let n = 0; new PerformanceObserver(list => { n +="
        " list.getEntries().filter(entry => entry.name.endsWith('/api/snapshot')).length;"
        " if (n >= 3) done(n); }).observe({ entryTypes: ['resource'] }); })"
    )
    assert heard >= 3
    assert (processor_s(meter) - before_s) / heard < 0.15


def test_collectors_show_sources_spools_and_an_even_account(
    seen: Watched, pipeline: Pipeline
) -> None:
    page = seen.page
    show(page, pipeline, "collectors")
    expect(page.locator(".equation")).to_contain_text("delivered")
    expect(page.locator(".equation .pill")).to_have_text("even")
    expect(page.locator("progress.warn")).to_have_count(1)
    expect(page.get_by_role("row", name="unix")).to_be_visible()


def test_routers_show_lag_and_dead_letters_with_the_way_to_replay_them(
    seen: Watched, pipeline: Pipeline
) -> None:
    page = seen.page
    show(page, pipeline, "routers")
    expect(page.get_by_role("row", name="lake")).to_contain_text("delivers")
    expect(page.get_by_role("row", name="loki")).to_contain_text("waits")
    expect(page.locator(".note")).to_contain_text("penstock router dlq replay JOB.yaml --sink loki")


def test_dead_letters_are_looked_at_and_replayed_with_the_token_once_it_is_meant(
    seen: Watched, pipeline: Pipeline
) -> None:
    page, part = seen.page, pipeline.parts["router"]
    pipeline.replays = {"possible": True, "files": {"loki": 1}, "under_way": None, "last": None}
    file = {
        "name": "loki/logs.5f-0-7-8",
        "dead_letters": 2,
        "codes": {"http_400": 2},
        "reason": SCRIPT,
    }
    part.answers["list"] = (200, {"files": [file]})
    part.answers["replay"] = (409, {"error": "another replay is under way"})
    show(page, pipeline, "routers")
    page.get_by_role("button", name="Dead letters of loki").click()
    expect(page.get_by_role("dialog", name="token")).to_be_visible()
    assert part.posted == [], "nobody looks at records without the token"
    page.locator("#token-field").fill(pipeline.token)
    page.keyboard.press("Enter")
    listed = page.get_by_role("dialog", name="Dead letters of loki")
    expect(listed).to_contain_text(f"2 records, http_400: {SCRIPT}")
    assert page.evaluate("window.hacked") is None
    listed.get_by_role("button", name="Deliver them to lake").click()
    asked = page.get_by_role("dialog", name="Deliver dead letters again?")
    expect(asked).to_contain_text("lake receives nothing else")
    assert [document["do"] for _, _, document in part.posted] == ["list"], "it is only asked yet"
    asked.get_by_role("button", name="Do it").click()
    expect(asked).to_contain_text("Not done: router: another replay is under way")
    assert "503" in seen.errors.pop(), "what the browser itself says of such an answer"
    part.answers["replay"] = (202, {"done": "to lake, of loki: 1 file"})
    asked.get_by_role("button", name="Do it").click()
    expect(asked).to_contain_text("Done: to lake, of loki: 1 file")
    path, authorization, document = part.posted[-1]
    assert (path, authorization) == ("/dead-letters", f"Bearer {pipeline.token}")
    assert (document["sink"], document["to"]) == ("loki", "lake")
    assert document["by"].startswith("console, for ")
    asked.get_by_role("button", name="Close").click()
    last = {"sink": "loki", "to": "lake", "by": "alice", "records": 2, "problem": ""}
    pipeline.replays = {"possible": True, "files": {"loki": 0}, "under_way": None, "last": last}
    expect(page.locator("main")).to_contain_text("brought 2 records to lake, asked for by alice")
    pipeline.replays = {}


def test_a_tail_goes_on_and_finds_what_is_looked_for(seen: Watched, pipeline: Pipeline) -> None:
    page = seen.page
    show(page, pipeline, "tail?stream=logs")
    expect(page.locator(".records li")).to_have_count(5)
    pipeline.log.records["logs"].append(Record("telemetry.logs.new", b"needle", 10**18 + 99))
    expect(page.locator(".records li").first).to_contain_text("needle")
    page.get_by_label("Containing").fill("needle")
    page.keyboard.press("Enter")
    expect(page.locator(".records li")).to_have_count(1)
    page.locator(".records summary").click()
    expect(page.locator(".records pre")).to_contain_text("offset 5 of partition 0")
    del pipeline.log.records["logs"][-1]


def test_nothing_that_telemetry_says_is_more_than_text(seen: Watched, pipeline: Pipeline) -> None:
    page = seen.page
    for view in VIEWS:
        show(page, pipeline, view)
        where = page.locator("main")
        expected = {"streams": "__activity", "pipeline": HOSTILE[:10], "activity": HOSTILE,
                    "collectors": HOSTILE, "routers": SCRIPT, "overview": "Throughput",
                    "specs": "Violations", "search": "Trace id"}.get(view, HOSTILE)  # fmt: skip
        expect(where).to_contain_text(expected)
        assert page.locator("main img").count() == 0
        assert page.evaluate("window.hacked") is None
    show(page, pipeline, "streams")
    page.get_by_label("Show").fill("onerror")
    expect(page.locator("button.link")).to_have_text(HOSTILE)


def test_the_pauses_until_an_outage_is_shown_are_less_than_five_seconds() -> None:
    config = ConsoleConfig()
    page_ms = int(re.findall(r"const INTERVAL_MS = (\d+)", (PAGE / "store.js").read_text())[0])
    pause_s = max(config.poll_interval_s, PAUSE_S_MAX)
    assert (pause_s + config.timeout_s) * 1000 + page_ms < OUTAGE_MS


def test_an_outage_is_shown_within_five_seconds(seen: Watched, pipeline: Pipeline) -> None:
    page, part = seen.page, pipeline.parts["logd-2"]
    show(page, pipeline, "pipeline")
    expect(page.locator("#overall")).not_to_contain_text("logd-2")
    part.silent.set()
    try:
        said = page.locator("#overall")
        expect(said).to_have_text("logd-2 does not answer", timeout=OUTAGE_MS * PATIENCE)
        expect(page.locator(".picture svg")).to_contain_text("1 of 3 away")
        expect(page.locator("#announce")).to_have_text("logd-2 does not answer")
        expect(page.locator(".reasons.bad")).to_contain_text("no answer within 2 s")
    finally:
        part.silent.clear()
        part.goes_on.set()
    expect(page.get_by_role("row", name="logd-2")).to_contain_text("ready")


def test_an_action_asks_first_and_needs_the_token(seen: Watched, pipeline: Pipeline) -> None:
    page, log = seen.page, pipeline.log
    before = list(log.infos)
    show(page, pipeline, "streams")
    page.get_by_label("Show").fill("orders-123")
    page.locator("button.link", has_text="orders-123").click()
    page.get_by_role("button", name="Pause the stream").click()
    asked = page.get_by_role("dialog", name="Pause the stream?")
    expect(asked).to_contain_text("orders-123")
    asked.get_by_role("button", name="Do it").click()
    wants = page.get_by_role("dialog", name="token")
    expect(wants).to_be_visible()
    assert log.modes == []
    page.locator("#token-field").fill(pipeline.token)
    page.keyboard.press("Enter")
    expect(asked).to_contain_text("Done: pause: orders-123")
    assert log.modes == [("orders-123", True, None)]
    asked.get_by_role("button", name="Close").click()
    expect(page.locator("tbody tr", has_text="orders-123")).to_contain_text("held")
    log.infos[:] = before


def test_where_reading_needs_the_token_the_page_asks_for_it(
    browser: Browser, tmp_path: Path
) -> None:
    with running_console(tmp_path, {}, read_without_token=False) as console:
        page = browser.new_page()
        page.goto(f"http://{console.address}/")
        expect(page.get_by_role("dialog", name="token")).to_be_visible()
        expect(page.locator("#overall")).to_have_text("looking …")
        page.locator("#token-field").fill((tmp_path / "token").read_text().strip())
        page.keyboard.press("Enter")
        expect(page.locator("#overall")).to_have_text("all well")
        page.context.close()


def test_everything_is_reached_by_keyboard(seen: Watched, pipeline: Pipeline) -> None:
    page = seen.page
    show(page, pipeline, "pipeline")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    for _ in range(4):
        page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Streams")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Streams")).to_be_visible()
    page.get_by_label("Show").fill("orders-5")
    link = page.locator("button.link").first
    link.focus()
    name = link.inner_text()
    for _ in range(2):
        with page.expect_response("**/api/snapshot"):
            pass
    expect(page.locator("button.link", has_text=name).first).to_be_focused()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 420)])
def test_no_view_has_an_accessibility_violation(
    browser: Browser, pipeline: Pipeline, scheme: str, width: int
) -> None:
    size = {"width": width, "height": 800}
    with watched(browser, pipeline.address, color_scheme=scheme, viewport=size) as seen:
        for view in VIEWS:
            show(seen.page, pipeline, view)
            expect(seen.page.locator("main")).to_contain_text(
                ":" if "tail" in view else "a" if view == "search" else "0"
            )
            check_accessible(seen, f"page-{view.partition('?')[0]}-{scheme}-{width}")


def test_on_a_narrow_screen_the_current_view_s_link_is_in_sight(
    browser: Browser, pipeline: Pipeline
) -> None:
    size = {"width": 375, "height": 700}
    with watched(browser, pipeline.address, viewport=size) as seen:
        for view in (*VIEWS, *reversed(VIEWS)):
            seen.page.goto(f"http://{pipeline.address}/#/{view}")
            link = seen.page.locator("#views a[aria-current]")
            expect(link).to_have_attribute("data-view", view.partition("?")[0])
            expect(link).to_be_in_viewport(ratio=1)


def test_the_page_says_when_the_console_itself_is_gone(browser: Browser, tmp_path: Path) -> None:
    with chromium_page_of(browser, tmp_path) as page:
        expect(page.locator("#banner")).to_contain_text("does not answer")
        expect(page.locator("#overall")).to_have_text("no news")


def chromium_page_of(browser: Browser, tmp_path: Path) -> Any:
    """A page whose console has ended."""
    with running_console(tmp_path, {}) as console:
        page = browser.new_page()
        page.goto(f"http://{console.address}/")
        expect(page.locator("#overall")).to_have_text("all well")
    return page
