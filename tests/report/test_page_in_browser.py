"""The page in a real browser: complete by itself, and within the width of a desk and of a telephone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from report_samples import SAMPLES

from chaos.report import render

pytestmark = pytest.mark.browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# The elements that are wider than the window, by what is left of them when scrolled containers are set aside.
TOO_WIDE = """() => [...document.querySelectorAll('body *')]
    .filter(e => !e.closest('pre') && !e.closest('svg') && !e.closest('.hidden'))
    .filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5)
    .map(e => e.tagName + '.' + e.className + ': ' + e.textContent.trim().slice(0, 40))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.fail(f"no browser: install one of {', '.join(NAMES)} (apt-get install chromium)")
    try:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415 - a machine without it must be told so
    except ImportError as error:
        pytest.fail(f"the browser cannot be driven: {error} (pip install playwright)")
    with sync_playwright() as playwright:
        # Tests often run as root, where the browser's own sandbox cannot be made.
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    told = {}
    for name, (make, _) in SAMPLES.items():
        run = make()
        folder = tmp_path_factory.mktemp(name)
        told[name] = render.render(run.card, run.journal, run.steps, folder)[0].as_uri()
    return told


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", SAMPLES)
def test_the_page_is_complete_by_itself_and_needs_no_sideways_scrolling(name, width, browser, pages):
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if width == 400 else None
    )
    page = context.new_page()
    requested: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(pages[name], wait_until="networkidle")
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    assert [url for url in requested if url != pages[name] and not url.startswith("data:")] == []
    assert complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(TOO_WIDE) == []
    assert page.locator("h1").inner_text() == "nvswitch-path-blackhole"
    assert page.locator(".verdict").inner_text().lower().endswith(SAMPLES[name][1])
    # One drawing of each pair is shown, the one that fits.
    shown = page.locator("figure svg.plot:visible")
    assert shown.count() == page.locator("figure").count()
    context.close()
