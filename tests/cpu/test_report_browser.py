"""Reports in a real browser, headless: no error, hover and zoom, keyboard, fingers, small windows, dark and light.

Needs playwright and a Chromium (Debian: ``apt-get install chromium``). Skips where either is missing.
"""

import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from report_files import LINKS, write_all

from torch_lms.report.page import page as html
from torch_lms.report.read import read_all

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

SHOWN = "torchLmsReport.view.shown"
CHOSEN = "torchLmsReport.timelines.map((each) => each.lanes.chosen && each.lanes.chosen.key)"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of one file of each kind, with three machines side by side."""
    folder = tmp_path_factory.mktemp("report")
    contents = read_all(write_all(folder))
    path = folder / "report.html"
    path.write_text(html(contents, "a report", "made by a test"))
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless; as root it has no sandbox."""
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any, report: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The report in a window of its own. Whatever goes to the console, or to the network, fails the test."""
    options = getattr(request, "param", {"viewport": {"width": 1200, "height": 1000}})
    context = browser.new_context(offline=True, **options)
    page = context.new_page()
    heard: list[str] = []
    page.on("console", lambda message: heard.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: heard.append(str(error)))
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url))
    page.goto(report.as_uri())
    page.wait_for_function("window.torchLmsReport !== undefined")
    yield page
    assert heard == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    context.close()


def lanes(page: Any, number: int = 1) -> Any:
    """The drawing area of a timeline; files are sorted by name, so the first is that over NVLink."""
    area = page.locator(f"#step-{number}-lanes .u-over")
    area.scroll_into_view_if_needed()
    return area


def test_every_chart_is_drawn(opened: Any) -> None:
    count = opened.locator(".chart").count()
    assert count == opened.locator(".chart canvas").count() == opened.evaluate("torchLmsReport.charts.length")
    drawn = opened.evaluate(
        """torchLmsReport.charts.map((chart) => {
            const { width, height } = chart.ctx.canvas;
            return chart.ctx.getImageData(0, 0, width, height).data.some((value) => value !== 0);
        })"""
    )
    assert drawn == [True] * count


def test_what_the_mouse_is_over_is_told(opened: Any) -> None:
    area = lanes(opened)
    box = area.bounding_box()
    opened.mouse.move(box["x"] + 0.1 * box["width"], box["y"] + 10)
    hint = opened.locator("#step-1-lanes .hint")
    assert hint.is_visible()
    assert "forward" in hint.inner_text()
    assert "MB" in hint.inner_text()  # the tensors that it uses
    opened.mouse.move(box["x"] + 0.1 * box["width"], box["y"] + box["height"] + 60)
    assert hint.is_hidden()


def test_a_drag_zooms_all_timelines_and_a_double_click_shows_the_whole(opened: Any) -> None:
    whole = opened.evaluate(SHOWN)
    box = lanes(opened).bounding_box()
    opened.mouse.move(box["x"] + 100, box["y"] + 10)
    opened.mouse.down()
    opened.mouse.move(box["x"] + 300, box["y"] + 10, steps=3)
    opened.mouse.up()
    least, most = opened.evaluate(SHOWN)
    assert most - least == pytest.approx((whole[1] - whole[0]) * 200 / box["width"], rel=0.05)
    scales = opened.evaluate("torchLmsReport.view.charts.map((chart) => [chart.scales.x.min, chart.scales.x.max])")
    assert scales == [[least, most]] * len(scales)
    opened.mouse.dblclick(box["x"] + 200, box["y"] + 10)
    assert opened.evaluate(SHOWN) == pytest.approx(whole)


def test_a_tensor_that_is_chosen_lights_up_on_all_machines(opened: Any) -> None:
    opened.locator('#step-1 button.tensor[aria-pressed="false"]').last.click()
    first, *others = opened.evaluate(CHOSEN)
    assert first is not None
    assert others[: len(LINKS) - 1] == [first] * (len(LINKS) - 1)
    assert f"#{first}" in opened.locator("#said").inner_text()
    assert opened.locator('button.tensor[aria-pressed="true"]').count() >= 1


def test_by_keyboard_alone(opened: Any) -> None:
    opened.locator("#step-1-lanes").focus()
    whole = opened.evaluate(SHOWN)
    opened.keyboard.press("+")
    half = opened.evaluate(SHOWN)
    assert half[1] - half[0] == pytest.approx((whole[1] - whole[0]) / 2)
    opened.keyboard.press("ArrowRight")
    assert opened.evaluate(SHOWN)[0] > half[0]
    opened.keyboard.press("0")
    assert opened.evaluate(SHOWN) == pytest.approx(whole)
    opened.keyboard.press("n")
    assert opened.evaluate(CHOSEN)[0] is not None
    opened.keyboard.press("Escape")
    assert opened.evaluate(CHOSEN)[0] is None
    opened.locator("#step-2-lanes").focus()  # over PCIe, the program waits
    opened.keyboard.press("s")
    said = opened.locator("#said").inner_text()
    assert "the program waits" in said
    assert "#" in said


def test_a_tensors_whereabouts_follow_each_other(opened: Any) -> None:
    parts = opened.evaluate(
        """torchLmsReport.timelines[1].step.lives.map((life) => torchLmsReport.timelines[1].step.whereabouts(life))"""
    )
    kinds = {part["kind"] for life in parts for part in life}
    assert {"device", "leaving", "away", "coming"} <= kinds
    for life in parts:
        for before, after in pairwise(life):
            assert before["to"] <= after["from"] + 1e-6


PHONE = {"viewport": {"width": 390, "height": 800}, "has_touch": True, "is_mobile": True, "color_scheme": "dark"}


@pytest.mark.parametrize("opened", [PHONE], indirect=True)
def test_on_a_phone_in_the_dark(opened: Any) -> None:
    assert opened.evaluate("document.documentElement.scrollWidth") <= 390
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    lanes(opened)
    opened.evaluate(
        """(() => {
            const over = document.querySelector("#step-1-lanes .u-over");
            const left = over.getBoundingClientRect().left;
            const touch = (kind, id, x) => over.dispatchEvent(
                new PointerEvent(kind, { pointerId: id, pointerType: "touch", clientX: left + x, bubbles: true }));
            touch("pointerdown", 1, 100);
            touch("pointerdown", 2, 200);
            touch("pointermove", 2, 250);
            touch("pointerup", 1, 100);
            touch("pointerup", 2, 250);
        })()"""
    )
    least, most = opened.evaluate(SHOWN)
    whole = opened.evaluate("torchLmsReport.view.whole")
    assert most - least == pytest.approx((whole[1] - whole[0]) / 1.5, rel=0.02)
