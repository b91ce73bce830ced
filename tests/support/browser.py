"""A real browser: Chromium as Debian packages it, driven by Playwright."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.support.debian import installed
from tests.support.waiting import PATIENCE

EXPECT_MS = 10_000
"""How long a page may take to show what is expected, on a quiet machine."""

_BEYOND: Final = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
_SCREENSHOTS: Final = "PENSTOCK_SCREENSHOTS"
"""Names a directory that gets a picture of each page that is checked."""


@dataclass
class Watched:
    """A page, and what went wrong in it.

    Attributes:
        errors: What its scripts raised, or wrote to the console as an error or a warning.
        elsewhere: Requests to anybody but the console.
    """

    page: Page
    errors: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Chromium; the test is skipped where there is none, and fails there in CI."""
    expect.set_options(timeout=EXPECT_MS * PATIENCE)
    path = shutil.which("chromium") or shutil.which("google-chrome") or installed("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def watched(browser: Browser, address: str, **context: Any) -> Iterator[Watched]:
    """A page of its own; whatever goes wrong in it makes the test fail at the end."""
    holder = browser.new_context(**context)
    found = Watched(holder.new_page())
    page = found.page

    def on_console(message: Any) -> None:
        if message.type in ("error", "warning"):
            found.errors.append(message.text)

    def on_request(request: Any) -> None:
        if not request.url.startswith(f"http://{address}/"):
            found.elsewhere.append(request.url)

    page.on("console", on_console)
    page.on("pageerror", lambda error: found.errors.append(str(error)))
    page.on("request", on_request)
    page.on("dialog", lambda dialog: found.errors.append(f"dialog: {dialog.message}"))
    page.set_default_timeout(EXPECT_MS * PATIENCE)
    yield found
    assert found.errors == []
    assert found.elsewhere == []
    holder.close()


def check_accessible(seen: Watched, name: str) -> None:
    """Check that axe finds nothing in a page, and that it is no wider than its window.

    Args:
        seen: The page.
        name: Of its picture, where `PENSTOCK_SCREENSHOTS` names a directory.
    """
    if directory := os.environ.get(_SCREENSHOTS):
        seen.page.screenshot(path=Path(directory, f"{name}.png"))
    found = Axe().run(seen.page).response["violations"]
    assert [(it["id"], [node["html"][:200] for node in it["nodes"]]) for it in found] == []
    assert seen.page.evaluate(_BEYOND) <= 0, f"{name} is wider than the window"
