"""The console's figures over time, in real Chromium: axes, units, values under the pointer."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from penstock.base.clock import SystemClock
from penstock.deploy.console.history.file import HistoryFile
from penstock.deploy.console.history.rings import History, Series
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

pytestmark = pytest.mark.live

HOSTILE = "<img src=x onerror=alert(1)>"
WEEK_S = 7 * 86_400
MAX_SERIES = 200


def remember_a_week(directory: Path) -> None:
    """Samples of a week: hourly, every 5 minutes for the last 6 hours, every 15 s at the end."""
    now = SystemClock().unix_ns() // 10**9
    history, file = History(MAX_SERIES), HistoryFile(directory, MAX_SERIES)
    file.load(history)
    ticks = [*range(now - WEEK_S, now - 21_600, 3600), *range(now - 21_600, now - 900, 300)]
    for unix_s in [*ticks, *range(now - 900, now, 15)]:
        busy = 1200 + 700 * math.sin(unix_s / 9000) + 90 * math.sin(unix_s / 47)
        far = max(0.0, 4000 * math.sin(unix_s / 5000))
        used = 3.1e9 + (unix_s - now) * 2000
        of_all = {
            "received": busy, "stored": busy * 0.97, "delivered": busy * 1.6, "errors": far / 900,
            "waiting_collectors": far / 7, "waiting_sinks": far, "drops": far / 4000,
            "app_drops": 0.0, "stored_bytes": used, "spool_bytes": far * 500,
            "free_bytes": 60e9 - used,
        }  # fmt: skip
        sample = {Series("pipeline", "", figure): value for figure, value in of_all.items()}
        sample[Series("stream", HOSTILE, "stored")] = busy / 3
        sample[Series("stream", HOSTILE, "errors")] = 0.006
        sample[Series("sink", "router/lake", "delivered")] = busy / 2
        file.write(history, history.note(unix_s, sample))
    file.close()


def statuses() -> dict[str, dict[str, object]]:
    account = {"received": 105, "recovered": 0, "delivered": 100, "held": 5, "difference": 0}
    spool = {"bytes": 950, "max_bytes": 1000}
    sender = {"service": "checkout", "emitted": 112, "acked": 105, "dropped": {"queue_full": 3},
              "queued": 4, "spooled": 0, "lost": 0, "difference": 0, "unseen": 0}  # fmt: skip
    apps = {"senders": {"one": sender}, "ended": {}, "unreported": {}}
    collector = a_status(
        "collector", "collector", a_stage("source/unix", 105),
        info={"reconciliation": {"unix": account}, "apps": {"unix": apps}, "spool": spool},
    )  # fmt: skip
    logd = a_status("logd", "logd-1", a_stage("stream/logs", 100))
    router = a_status("router", "lake", a_stage("sink/lake", 90, lag=10))
    return {"collector": collector, "logd-1": logd, "router": router}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("overview")
    remember_a_week(directory / "history")
    parts = {name: FakePart(lambda told=told: told) for name, told in statuses().items()}  # type: ignore[misc]
    log = FakeConsoleLog([a_stream(HOSTILE, 7, leader=NODES[0]), a_stream("logs", 3)])
    urls = {name: part.url for name, part in parts.items()}
    history = {"directory": directory / "history", "max_series": MAX_SERIES}
    with running_console(directory, urls, log, history=history) as console:
        yield console.address
    for part in parts.values():
        part.close()


@pytest.fixture
def seen(browser: Browser, address: str) -> Iterator[Watched]:
    with watched(browser, address, timezone_id="UTC") as seen:
        yield seen


@pytest.mark.parametrize(("span", "slots"), [("15m", 61), ("6h", 73), ("7d", 169)])
def test_each_span_has_axes_with_units(seen: Watched, address: str, span: str, slots: int) -> None:
    page = seen.page
    page.goto(f"http://{address}/#/overview?span={span}")
    throughput = page.locator(".chart").first
    expect(throughput.locator("svg text").first).to_have_text("0/s")
    expect(throughput.locator("svg")).to_contain_text("k/s")
    disk = page.locator(".chart", has_text="bytes in use")
    expect(disk.locator("svg")).to_contain_text("GiB")
    labels = throughput.locator("svg text[text-anchor=middle]").all_text_contents()
    assert len(labels) >= 3
    assert all((":" in label) == (span != "7d") for label in labels), labels
    drawn = throughput.locator("path.series").first.get_attribute("d") or ""
    assert slots * 0.9 <= drawn.count("L") + drawn.count("M") <= slots


def test_small_rates_have_an_axis_whose_labels_differ(seen: Watched, address: str) -> None:
    seen.page.goto(f"http://{address}/#/overview?kind=stream&name={HOSTILE}")
    errors = seen.page.locator(".chart", has_text="Errors and losses")
    expect(errors.locator("svg text[text-anchor=end]")).to_have_text(["0/s", "0.1/s"])


def test_the_pointer_and_the_arrow_keys_show_the_values_of_a_time(
    seen: Watched, address: str
) -> None:
    page = seen.page
    page.goto(f"http://{address}/#/overview?span=6h")
    throughput = page.locator(".chart").first
    expect(throughput.locator("header .num")).to_have_text("newest")
    plot = throughput.locator(".plot")
    box = plot.bounding_box()
    assert box is not None
    plot.hover(position={"x": box["width"] / 2, "y": 60})
    tip = throughput.locator(".tip")
    expect(tip).to_be_visible()
    expect(tip).to_contain_text("/s")
    expect(throughput.locator(".cursor")).to_have_attribute("visibility", "visible")
    in_the_middle = throughput.locator("header .num").inner_text()
    page.mouse.move(0, 0)
    expect(tip).to_be_hidden()
    plot.focus()
    page.keyboard.press("End")
    newest = throughput.locator("header .num").inner_text()
    assert newest != in_the_middle
    page.keyboard.press("ArrowLeft")
    expect(throughput.locator("header .num")).not_to_have_text(newest)
    expect(throughput.locator("[aria-live]")).to_contain_text("received")
    page.keyboard.press("Escape")
    expect(throughput.locator("header .num")).to_have_text("newest")


def test_what_is_shown_is_chosen_by_keyboard_and_has_a_link_of_its_own(
    seen: Watched, address: str
) -> None:
    page = seen.page
    page.goto(f"http://{address}/")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.get_by_role("button", name="7 days").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="7 days")).to_have_attribute("aria-pressed", "true")
    page.get_by_label("Figures of").select_option(label=HOSTILE)
    expect(page.locator("#main .head p")).to_contain_text(f"The last 7 days of stream {HOSTILE}")
    expect(page.locator(".chart").first.locator(".legend")).to_contain_text("/s")
    assert page.locator("main img").count() == 0
    assert "span=7d" in page.url
    page.goto(f"http://{address}/#/overview?kind=sink&name=router%2Flake&span=6h")
    expect(page.locator("#main .head p")).to_contain_text("sink router/lake")
    expect(page.locator(".chart").first.locator(".legend li").nth(1)).to_contain_text("/s")
    expect(page.get_by_label("Figures of")).to_have_value("sink router/lake")


def test_every_thing_leads_to_its_own_figures(seen: Watched, address: str) -> None:
    page = seen.page
    for view, link, told in (
        ("collectors", "History", "collector collector"),
        ("routers", "History", "job router"),
        ("routers", "lake", "sink router/lake"),
    ):
        page.goto(f"http://{address}/#/{view}")
        page.get_by_role("link", name=link, exact=True).click()
        expect(page.locator("#main .head p")).to_contain_text(told)
    page.goto(f"http://{address}/#/streams")
    page.locator("button.link", has_text="logs").click()
    page.get_by_role("button", name="History").click()
    expect(page.locator("#main .head p")).to_contain_text("stream logs")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_overview_has_no_accessibility_violation(
    browser: Browser, address: str, scheme: str, width: int
) -> None:
    size = {"width": width, "height": 800}
    with watched(browser, address, color_scheme=scheme, viewport=size) as seen:
        for query in ("?span=7d", f"?kind=stream&name={HOSTILE}"):
            seen.page.goto(f"http://{address}/#/overview{query}")
            expect(seen.page.locator(".chart svg").first).to_be_visible()
            check_accessible(seen, f"overview-{query.split('=')[1][:6]}-{scheme}-{width}")


def test_the_account_of_all_parts_is_the_first_thing_and_names_the_part_that_is_off(
    browser: Browser, tmp_path: Path
) -> None:
    told = statuses()
    told["logd-1"] = a_status(
        "logd", "logd-1", a_stage("stream/logs", 100, detail={"high_watermark": 99})
    )
    told["router"] = a_status(
        "router", "lake", a_stage("sink/lake", 90, lag=10),
        info={"log": {"logs": 100}, "sinks": {"lake": {"committed": {"logs": 90}}}},
    )  # fmt: skip
    parts = {name: FakePart(lambda name=name: told[name]) for name in told}  # type: ignore[misc]
    urls = {name: part.url for name, part in parts.items()}
    with (
        running_console(tmp_path, urls, FakeConsoleLog([a_stream("logs", 3)])) as console,
        watched(browser, console.address, timezone_id="UTC") as seen,
    ):
        page = seen.page
        page.goto(f"http://{console.address}/")
        account = page.locator(".account")
        expect(account).to_contain_text("every record is accounted for")
        rows = account.locator("tbody tr")
        expect(rows).to_have_count(6)
        expect(account.locator("tr.off")).to_have_count(0)
        expect(rows.filter(has_text="log → sink")).to_contain_text("90 read + 10 waiting")
        app = rows.filter(has_text="collector/checkout")
        expect(app).to_contain_text("105 acked + 4 queued + 3 dropped (queue_full)")
        told["router"] = a_status(
            "router", "lake", a_stage("sink/lake", 90, sent=83, lag=10), info=told["router"]["info"]
        )
        off = account.locator("tr.off")
        expect(off).to_have_count(1)
        expect(off).to_contain_text("router/lake")
        expect(off).to_contain_text("83 delivered")
        expect(off.locator("td.num")).to_have_text("7")
        expect(account.locator("header")).to_contain_text("records are not accounted for")
        check_accessible(seen, "overview, off")
    for part in parts.values():
        part.close()
