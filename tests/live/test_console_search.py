"""The console's search page in real Chromium, over a real logd with 1,000 streams."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import Watched, check_accessible, watched
from tests.support.search import (
    COLLECTORS,
    HOSTILE,
    LOGS,
    SPANS,
    STREAMS,
    TRACE,
    SearchedPipeline,
    explained,
    searched_pipeline,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchedPipeline]:
    with searched_pipeline(tmp_path_factory.mktemp("search")) as made:
        yield made


@pytest.fixture
def seen(browser: Browser, pipeline: SearchedPipeline) -> Iterator[Watched]:
    with watched(browser, pipeline.address) as seen:
        yield seen


def show(page: Page, pipeline: SearchedPipeline, query: str = "") -> None:
    page.goto(f"http://{pipeline.address}/#/search{query}")
    expect(page.locator("main h1")).to_have_count(1)


def test_from_the_form_to_the_results_to_the_way_to_the_trace_and_back(
    seen: Watched, pipeline: SearchedPipeline
) -> None:
    page = seen.page
    show(page, pipeline)
    page.get_by_label("Service").fill("cart")
    page.get_by_label("Text").fill("order 10 placed")
    page.get_by_label("From", exact=True).select_option("earliest")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("status").nth(1)).to_contain_text("1 record found")
    row = page.get_by_role("row", name="order 10 placed")
    expect(row).to_contain_text("cart · log · logs/0/10")
    expect(row).to_contain_text("1 dead letter")
    found = page.url
    row.click()
    expect(page.get_by_role("heading", name="Record logs/0/10")).to_be_visible()
    way = page.get_by_role("list", name="The way of record logs/0/10")
    for words in (
        "collector not known", "stored", "main/lake", "delivered", "batch 812", "kind=log/date",
        "dead letter", "penstock router dlq replay", "not routed", "severity_number >= 17 is false",
        "waiting", "its problem: HTTP 503", "sampled", "lost", "could not be asked",
        f"collector-{COLLECTORS - 1}",
    ):  # fmt: skip
        expect(way).to_contain_text(words)
    spans = page.get_by_role("region", name="Spans").get_by_role("listitem")
    expect(spans).to_have_count(len(SPANS))
    assert [it.split("\n")[0].split(" checkout")[0] for it in spans.all_inner_texts()][:3] == [
        "POST /orders",
        "check the basket",
        "pay",
    ]
    expect(spans.nth(4)).to_contain_text("failed")
    logs = page.get_by_role("region", name="Logs of the trace")
    expect(logs.get_by_role("listitem")).to_have_count(3)
    expect(logs.locator("[aria-current]")).to_have_text("order 10 placed")
    address = page.url
    page.go_back()
    expect(page.get_by_role("row", name="order 10 placed")).to_be_visible()
    assert page.url == found
    expect(page.locator("a[data-position='logs/0/10']")).to_be_focused()
    page.goto("about:blank")
    page.goto(address)  # as a bookmark
    expect(page.get_by_role("list", name="The way of record")).to_contain_text("batch 812")
    page.get_by_role("link", name="Back to the results").click()
    expect(page.get_by_role("row", name="order 10 placed")).to_be_visible()
    expect(page.get_by_label("Service")).to_have_value("cart")


def test_each_mistake_stands_next_to_its_field(seen: Watched, pipeline: SearchedPipeline) -> None:
    page = seen.page
    show(page, pipeline)
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#error-service")).to_contain_text("fill in one of")
    page.get_by_label("Trace id").fill("0af7")
    page.get_by_label("Stream", exact=True).fill("logs, nowhere")
    page.get_by_label("From", exact=True).select_option("time")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#error-trace_id")).to_have_text("a trace id is 32 hexadecimal digits")
    expect(page.locator("#error-stream")).to_have_text("there is no stream nowhere")
    expect(page.locator("#error-from")).to_contain_text("give a time")
    expect(page.locator("#error-service")).to_be_empty()
    trace_id = page.get_by_label("Trace id")
    expect(trace_id).to_be_focused()
    expect(trace_id).to_have_attribute("aria-invalid", "true")
    expect(trace_id).to_have_accessible_description(re.compile("a trace id is 32 hexadecimal"))
    assert all("400" in it for it in seen.errors)
    seen.errors.clear()


def test_a_condition_is_read_by_a_job_and_its_mistakes_stand_next_to_it(
    seen: Watched, pipeline: SearchedPipeline
) -> None:
    page = seen.page
    show(page, pipeline)
    where = page.get_by_label("Condition")
    where.fill("service = 'cart'")
    page.get_by_label("Service").fill("cart")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#error-where")).to_contain_text("a condition stands alone")
    page.get_by_label("Service").fill("")
    pipeline.job.answers["filter"] = (409, {"error": "where: there is no column boddy"})
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#error-where")).to_contain_text("there is no column boddy")
    expect(where).to_be_focused()
    pipeline.job.answers["filter"] = (200, {"filter": None})
    pipeline.job.answers["match"] = lambda document: (
        200,
        {"records": [it[:3] for it in document["records"] if it[:3] == ["logs", 0, 12]]},
    )
    where.fill("service = 'cart' and body like '%12 placed'")
    page.get_by_label("From", exact=True).select_option("earliest")
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".found tbody tr")).to_have_count(1)
    expect(page.locator(".found tbody tr")).to_contain_text("order 12 placed")
    assert "where=service" in page.url
    page.get_by_label("Jobs that do not run").select_option("yes")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#error-stopped")).to_contain_text("search.job_files names no job file")
    assert all("400" in it for it in seen.errors)
    seen.errors.clear()


def test_what_never_reached_the_log_and_who_could_not_be_asked_is_named(
    seen: Watched, pipeline: SearchedPipeline
) -> None:
    page = seen.page
    show(page, pipeline, "?service=checkout&text=declined")
    never = page.get_by_role("region", name="Never reached the log", exact=True)
    expect(never).to_contain_text(f"card declined {HOSTILE}")
    expect(never).to_contain_text("filtered by quiet")
    expect(never).to_contain_text("in quarantine")
    expect(never).to_contain_text("7 records more that it dropped")
    withheld = page.get_by_role("region", name="Not handed over")
    expect(withheld).to_contain_text("12 dropped by the library (queue_full 12), 3 in memory")
    lacks = page.get_by_role("region", name="What the answer lacks")
    expect(lacks).to_contain_text("2 parts could not be asked")
    expect(lacks).to_contain_text(f"collector-{COLLECTORS - 1}")
    assert page.locator("main img").count() == 0


def test_an_answer_is_bounded_and_goes_on_page_by_page(
    seen: Watched, pipeline: SearchedPipeline
) -> None:
    page = seen.page
    show(page, pipeline, "?service=cart&stream=logs")
    expect(page.locator(".onward")).to_contain_text("the first 100")
    expect(page.locator(".found tbody tr")).to_have_count(100)
    page.get_by_role("link", name="Show the next").click()
    expect(page.locator(".found tbody tr")).to_have_count(LOGS // 2 - 100)
    assert "after=logs%2F0%2F198" in page.url
    expect(page.locator(".onward")).to_have_count(0)
    page.go_back()
    expect(page.locator(".found tbody tr")).to_have_count(100)


def test_a_search_without_a_hit_offers_the_whole_log(
    seen: Watched, pipeline: SearchedPipeline
) -> None:
    page = seen.page
    show(page, pipeline, f"?trace_id={TRACE}&from=15m")
    expect(page.locator(".empty")).to_contain_text("No record of the log matches")
    page.get_by_role("link", name="Search the whole log").click()
    expect(page.locator(".found tbody tr")).to_have_count(8)


def test_it_works_by_keyboard_alone(seen: Watched, pipeline: SearchedPipeline) -> None:
    page = seen.page
    show(page, pipeline)
    page.get_by_label("Service").focus()
    for _ in range(2):
        page.keyboard.press("Tab")
    page.keyboard.type("order 30 placed")
    for _ in range(4):
        page.keyboard.press("Tab")
    page.keyboard.type("the b")  # the beginning of the log
    for _ in range(4):  # the end, the jobs that do not run, the condition
        page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Search")).to_be_focused()
    page.keyboard.press("Enter")
    link = page.locator("a[data-position='logs/0/30']")
    expect(link).to_be_visible()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.dataset.position") == "logs/0/30":
            break
    expect(link).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Record logs/0/30")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Back to the results")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".stored pre")).to_contain_text('"service.name": "cart"')


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_no_state_of_it_has_an_accessibility_violation(
    browser: Browser, pipeline: SearchedPipeline, scheme: str, width: int
) -> None:
    size = {"width": width, "height": 900}
    with watched(browser, pipeline.address, color_scheme=scheme, viewport=size) as seen:
        page = seen.page
        for name, query, sight in (
            ("form", "", ".search-form"),
            ("results", "?service=checkout&text=declined", ".found"),
            ("record", "?text=order&record=logs/0/10", ".spans"),
        ):
            show(page, pipeline, query)
            expect(page.locator(sight).first).to_be_visible()
            check_accessible(seen, f"search-{name}-{scheme}-{width}")
        show(page, pipeline)
        page.get_by_label("Trace id").fill("0af7")
        page.get_by_role("button", name="Search").click()
        expect(page.locator("#error-trace_id")).not_to_be_empty()
        check_accessible(seen, f"search-mistakes-{scheme}-{width}")
        seen.errors.clear()


def test_all_streams_were_looked_at(seen: Watched, pipeline: SearchedPipeline) -> None:
    page = seen.page
    with page.expect_response(re.compile("/api/searches/.+")):
        show(page, pipeline, "?text=begins")
    expect(page.locator(".found tbody tr")).to_have_count((STREAMS - 2 + 49) // 50)


@contextmanager
def slow_job(pipeline: SearchedPipeline) -> Iterator[None]:
    """Within it the job `main` does not say what became of records."""
    before, goes_on = pipeline.job.answers["explain"], threading.Event()

    def slow(document: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        goes_on.wait(60)
        return explained("main", document)

    pipeline.job.answers["explain"] = slow
    try:
        yield
    finally:
        goes_on.set()
        pipeline.job.answers["explain"] = before


def searching() -> int:
    """Threads of the console that search."""
    return sum(it.name == "penstock-search" for it in threading.enumerate())


def test_a_long_search_shows_progress_is_cancelled_and_blocks_nothing(
    seen: Watched, pipeline: SearchedPipeline
) -> None:
    page = seen.page
    with slow_job(pipeline):
        show(page, pipeline, "?service=checkout&text=declined")
        progress = page.get_by_role("region", name="Progress")
        expect(progress).to_contain_text(f"5 found; asking {COLLECTORS - 1} jobs and collectors")
        expect(progress.get_by_role("progressbar")).to_have_attribute("max", str(STREAMS))
        for _ in range(2):  # the page goes on to get news meanwhile
            with page.expect_response("**/api/snapshot"):
                pass
        page.get_by_role("button", name="Cancel").focus()
        page.keyboard.press("Enter")
        status = page.locator("#main .head [role=status]")
        expect(status).to_contain_text("Cancelled; 275 records had been looked at")
        expect(progress).to_have_count(0)
        wait_until(lambda: not searching(), within_s=5, what="its thread ended")
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".found tbody tr").first).to_be_visible()


def test_too_many_searches_are_refused_with_the_reason(
    seen: Watched, pipeline: SearchedPipeline
) -> None:
    page = seen.page
    with slow_job(pipeline):
        show(page, pipeline)
        api, names = f"http://{pipeline.address}/api/searches", list[str]()
        for number in range(4):
            answer = page.request.post(api, data={"text": f"order {number}"})
            names.append(answer.json()["id"])
        show(page, pipeline, "?text=order+9")
        status = page.locator("#main .head [role=status]")
        expect(status).to_contain_text("4 searches are running, and no more may")
        page.request.delete(f"{api}/{names[0]}")
        page.get_by_role("button", name="Search").click()
        expect(page.get_by_role("region", name="Progress")).to_be_visible()
    wait_until(lambda: not searching(), within_s=20, what="all searches ended")
    seen.errors.clear()  # what the browser says of status 429
