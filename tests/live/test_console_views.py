"""The console's tail, specs and tokens in real Chromium."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from penstock.base.clock import SystemClock
from penstock.logd.format.batch import Record
from tests.support.browser import Watched, check_accessible, watched
from tests.support.console import (
    FakeConsoleLog,
    FakePart,
    a_stage,
    a_status,
    a_stream,
    running_console,
)

pytestmark = pytest.mark.live

MINUTE_NS = 60 * 10**9
LEVELS = {9: "INFO", 13: "WARN", 17: "ERROR"}
OLD, RECENT = 150, 30
"""Records of two hours ago, and of the last minutes."""


def a_log(n: int, unix_ns: int, *, body: str = "", pad: int = 0) -> Record:
    number = (9, 9, 13, 17)[n % 4]
    document = {
        "schema": "shop.order/1.2" if n % 3 else "shop.order/1.1", "severity_number": number,
        "severity_text": LEVELS[number], "body": body or f"order {n} <b>placed</b>",
        "resource": {"service.name": "checkout" if n % 2 else "cart"},
        "attributes": {"order.id": n, "region": "eu"}, "pad": "x" * pad,
    }  # fmt: skip
    return Record("telemetry.logs.shop", json.dumps(document).encode(), unix_ns)


class Shop:
    """A console of a shop's streams, and its log."""

    def __init__(self) -> None:
        now_ns = SystemClock().unix_ns()
        old = [a_log(n, now_ns - 120 * MINUTE_NS + n * 10**9) for n in range(OLD)]
        new = [a_log(OLD + n, now_ns - 2 * MINUTE_NS + n * 10**9) for n in range(RECENT)]
        records = {"logs": [*old, *new], "quiet": [Record("telemetry.quiet", b"hush", now_ns)]}
        infos = [a_stream("quiet", 1), a_stream("logs", OLD + RECENT), a_stream("__cursors", 9999)]
        self.log = FakeConsoleLog(infos, records)
        self.address = ""
        self.tokens: dict[str, str] = {}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    directory, shop = tmp_path_factory.mktemp("views"), Shop()
    account = {"refused": {"wrong_type: attributes.total": 7, "<b>broken</b>": 2}}
    told = a_status(
        "collector", "collector", a_stage("source/otlp", 5),
        info={"reconciliation": {"otlp": account}},
    )  # fmt: skip
    part = FakePart(lambda: told)
    urls = {"collector": part.url}
    with running_console(directory, urls, shop.log, read_token_file=directory / "read") as console:
        shop.address = console.address
        shop.tokens = {name: (directory / name).read_text().strip() for name in ("token", "read")}
        yield shop
    part.close()


@pytest.fixture
def seen(browser: Browser, shop: Shop) -> Iterator[Watched]:
    permissions = ["clipboard-read", "clipboard-write"]
    with watched(browser, shop.address, permissions=permissions) as seen:
        yield seen


def test_a_tail_opens_on_the_busiest_stream_with_its_last_hundred_records(
    seen: Watched, shop: Shop
) -> None:
    page = seen.page
    page.goto(f"http://{shop.address}/#/tail")
    expect(page.get_by_label("Stream")).to_have_value("logs")
    rows = page.locator(".records li")
    expect(rows).to_have_count(100)
    expect(rows.first).to_contain_text("order 179")
    expect(rows.first).to_contain_text("order.id=179")
    expect(rows.first.locator(".level")).to_have_text("ERROR")
    expect(rows.first.locator(".level.bad")).to_have_count(1)
    assert page.locator(".records b", has_text="placed").count() == 0
    page.get_by_label("Containing").type("order 17")
    expect(page.locator(".records li:visible")).to_have_count(10)
    expect(page.locator("#main .head p")).to_contain_text("10 records of logs shown")


def test_severity_filters_what_comes_and_what_came(seen: Watched, shop: Shop) -> None:
    page = seen.page
    page.goto(f"http://{shop.address}/#/tail?stream=logs")
    expect(page.locator(".records li")).to_have_count(100)
    page.get_by_label("Severity").select_option(label="error and above")
    expect(page.locator(".records li")).to_have_count((OLD + RECENT) // 4)
    assert set(page.locator(".records .level").all_text_contents()) == {"ERROR"}
    assert "severity=17" in page.url
    page.reload()
    expect(page.locator(".records li")).to_have_count((OLD + RECENT) // 4)


def test_a_tail_looks_back_by_time_page_by_page_and_comes_back(seen: Watched, shop: Shop) -> None:
    page = seen.page
    page.goto(f"http://{shop.address}/#/tail?stream=logs")
    expect(page.locator(".records li")).to_have_count(100)
    page.get_by_label("From").select_option(label="1 hour ago")
    expect(page.locator(".records li")).to_have_count(RECENT)
    expect(page.locator(".records li").first).to_contain_text("order 150")
    page.get_by_label("From").select_option(label="1 day ago")
    expect(page.locator(".records li").first).to_contain_text("order 0")
    expect(page.locator(".records li")).to_have_count(100)
    page.get_by_role("button", name="Show later ones").click()
    expect(page.locator(".records li")).to_have_count(OLD + RECENT)
    expect(page.get_by_role("button", name="Show later ones")).to_be_hidden()
    page.get_by_role("button", name="Show the newest").click()
    expect(page.locator(".records li").first).to_contain_text("order 179")


def test_a_record_is_copied_as_json_with_all_of_its_value(seen: Watched, shop: Shop) -> None:
    page = seen.page
    now_ns = SystemClock().unix_ns()
    shop.log.records["logs"].append(a_log(1, now_ns, body="a long one", pad=20_000))
    page.goto(f"http://{shop.address}/#/tail?stream=logs")
    row = page.locator(".records li").first
    expect(row).to_contain_text("a long one", timeout=60_000)
    row.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(row.locator("pre")).to_contain_text("characters more")
    row.get_by_role("button", name="Copy as JSON").click()
    expect(row.get_by_role("status")).to_have_text("Copied.")
    copied: dict[str, Any] = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert (copied["stream"], copied["partition"], copied["offset"]) == ("logs", 0, OLD + RECENT)
    assert len(copied["value"]["pad"]) == 20_000
    del shop.log.records["logs"][-1]


def test_a_record_has_a_link_of_its_own(seen: Watched, shop: Shop) -> None:
    page = seen.page
    page.goto(f"http://{shop.address}/#/tail?stream=logs&record=0:42")
    named = page.locator(".records li.named")
    expect(named).to_contain_text("order 42")
    expect(named.locator("pre")).to_contain_text("offset 42 of partition 0")
    link = named.get_by_role("link", name="Link to this record").get_attribute("href")
    assert link == "#/tail?stream=logs&record=0%3A42"
    page.goto(f"http://{shop.address}/#/overview")
    page.goto(f"http://{shop.address}/{link}")
    expect(page.locator(".records li.named")).to_contain_text("order 42")


def test_specs_have_versions_producers_fields_and_violations(seen: Watched, shop: Shop) -> None:
    page = seen.page
    page.goto(f"http://{shop.address}/#/specs")
    table = page.get_by_role("table", name="Specs")
    expect(table.get_by_role("row", name="shop.order 1.2")).to_contain_text("checkout, cart")
    expect(table.get_by_role("row", name="shop.order 1.1")).to_contain_text("logs")
    refused = page.get_by_role("table", name="Violations by reason")
    expect(refused.get_by_role("row").nth(1)).to_contain_text("wrong_type: attributes.total")
    expect(refused.get_by_role("row").nth(2)).to_contain_text("<b>broken</b>")
    page.locator("summary", has_text="Fields of shop.order 1.2").focus()
    page.keyboard.press("Enter")
    fields = page.get_by_role("table", name="Fields of shop.order 1.2")
    expect(fields.get_by_role("row", name="attributes.order.id")).to_contain_text("integer")
    with page.expect_response("**/api/specs"):
        pass
    expect(fields).to_be_visible()  # news do not close it
    page.get_by_label("Show").fill("nobody")
    expect(table.get_by_role("row", name="shop.order 1.2")).to_have_count(0)


def test_a_token_is_checked_when_it_is_entered_and_the_page_says_what_it_allows(
    seen: Watched, shop: Shop
) -> None:
    page = seen.page
    page.goto(f"http://{shop.address}/#/streams")
    page.get_by_role("button", name="Token").click()
    dialog = page.get_by_role("dialog", name="token")
    expect(dialog).to_contain_text("lets you look, and not act")
    page.locator("#token-field").fill("wrong")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_have_text("This is not a token of this console.")
    expect(dialog).to_be_visible()
    page.locator("#token-field").fill(shop.tokens["read"])
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name="Token: may look")).to_be_visible()
    page.locator("button.link", has_text="logs").click()
    page.get_by_role("button", name="Pause the stream").click()
    page.get_by_role("button", name="Do it").click()
    page.locator("#token-field").fill(shop.tokens["read"])
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("needs the other one")
    assert shop.log.modes == []
    page.locator("#token-field").fill(shop.tokens["token"])
    page.keyboard.press("Enter")
    asked = page.get_by_role("dialog", name="Pause the stream?")
    expect(asked).to_contain_text("Done: pause: logs")
    expect(asked).to_contain_text("now held")  # it is live
    asked.get_by_role("button", name="Close").click()
    expect(page.get_by_role("button", name="Token: may act")).to_be_visible()


def test_facts_of_a_stream_are_live(seen: Watched, shop: Shop) -> None:
    """The stream is the busiest one: the console remembers its growth in other tests."""
    page = seen.page
    page.goto(f"http://{shop.address}/#/streams")
    page.locator("button.link", has_text="logs").click()
    facts = page.get_by_role("dialog", name="logs")
    expect(facts).to_contain_text(f"0 to {OLD + RECENT}, end exclusive")
    before = list(shop.log.infos)
    shop.log.infos[1] = a_stream("logs", 4321)
    expect(facts).to_contain_text("0 to 4,321, end exclusive")
    del shop.log.infos[1]
    expect(facts).to_contain_text("logd does not name it any more")
    shop.log.infos[:] = before


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_no_view_and_no_dialog_has_an_accessibility_violation(
    browser: Browser, shop: Shop, scheme: str, width: int
) -> None:
    size = {"width": width, "height": 800}
    with watched(browser, shop.address, color_scheme=scheme, viewport=size) as seen:
        page = seen.page
        for view, sight in (
            ("tail?stream=logs&record=0:42", ".records li.named pre"),
            ("specs", "details.fold"),
        ):
            page.goto(f"http://{shop.address}/#/{view}")
            expect(page.locator(sight).first).to_be_visible()
            check_accessible(seen, f"{view.partition('?')[0]}-{scheme}-{width}")
        page.get_by_role("button", name="Token").click()
        page.locator("#token-field").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#token-outcome")).not_to_be_empty()
        check_accessible(seen, f"token-{scheme}-{width}")


def test_everything_here_is_done_by_keyboard(seen: Watched, shop: Shop) -> None:
    page = seen.page
    page.goto(f"http://{shop.address}/#/tail?stream=logs")
    expect(page.locator(".records li")).to_have_count(100)
    page.get_by_label("Stream").focus()
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.closest('label')?.textContent ??"
                                     " document.activeElement.textContent"))  # fmt: skip
    told = " ".join(reached)
    for words in ("Containing", "Severity", "From", "Subject", "Pause", "Clear", "order 179"):
        assert words in told, words
