"""The page of a report in a real browser, from a file: by clicks and by keys. Debian's chromium and chromium-driver."""

from __future__ import annotations

import io
import itertools
import re

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from tests import browsing

pytestmark = [pytest.mark.browser, browsing.needs_browser]
HTML = '<img src=x onerror="window.broken=1">'
NAMES = ["ann", "bob & co", HTML, '"quoted"', "</script>", "ünï ☂", "zoe"]
NAMES += [f"agent {k:02d}" for k in range(len(NAMES), 40)]


PIXELS = "const pixels = (c) => c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"


def rows(n, least=3, most=12, seed=0):
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(n), rng.integers(least, most, n))
    X = rng.normal(size=(len(codes), 2))
    y = np.sum(X * (1.0 + rng.normal(size=(n, 2)))[codes], axis=1) + 0.3 * rng.normal(size=len(codes))
    return X, y, codes


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Pages: of names that are code, with an outlier; over a graph; of 10,000 agents; without gains."""
    folder = tmp_path_factory.mktemp("reports")
    X, y, codes = rows(len(NAMES))
    y = np.where(codes == 6, y + 30 * X[:, 0], y)
    frame = pd.DataFrame(X, columns=["income", "<b>age</b>"])
    names = np.array(NAMES, dtype=object)[codes]
    model = ct.CollaborativeRegressor(design="linear").fit(frame, y, agents=names)
    report = model.report(folder / "names.html", folds=2)
    ct.CollaborativeClassifier(method="cd").fit(frame, np.digitize(y, [-1, 1]), agents=names).report(
        folder / "classes.html", folds=2
    )
    ct.load(ct.save(model, folder / "model")).report(folder / "bare.html")
    text = frame.assign(store=names, kind=np.where(X[:, 1] > 0, "new", "old"))
    text = ct.CollaborativeRegressor(design="linear").fit(text, pd.Series(y, name="<i>sales"), agents="store")
    text.report(folder / "text.html", folds=2)
    X, y, codes = rows(10_000, 2, 5)
    many = ct.CollaborativeRegressor(design="linear").fit(X, y, agents=[f"user {k:05d}" for k in codes])
    many.report(folder / "many.html", folds=2)
    return folder, report


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    yield from browsing.started(tmp_path_factory)


@pytest.fixture
def page(browser, files):
    """Opens a page; at the end, nothing may have gone wrong, and nobody have been asked for anything."""
    opened = []

    def open_page(name, at="", width=1280, dark=False):
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        scheme += [{"name": "prefers-reduced-motion", "value": "reduce"}]  # a page that glides cannot be clicked
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browsing.forget(browser)
        opened.append((files[0] / name).as_uri())
        browser.get(opened[-1] + at)
        found = Page(browser)
        found.until(lambda: found.run("return document.documentElement.dataset.ready") == "yes")
        return found

    yield open_page
    complaints = browsing.complaints(browser)
    asked = {
        url.split("#")[0] for url in browsing.requests_of(browser) if not url.startswith(("data:", "about:", "blob:"))
    }
    broken = browser.execute_script("return window.broken")
    browser.get("about:blank")
    assert complaints == []
    assert asked <= set(opened)
    assert broken is None


class Page:
    def __init__(self, browser):
        self.browser = browser
        self.run = browser.execute_script

    def until(self, test):
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.browser, browsing.LONG, 0.05).until(lambda _: test())

    def __call__(self, selector):
        return self.browser.find_element("css selector", selector)

    def all(self, selector):
        return self.browser.find_elements("css selector", selector)

    def text(self, selector):
        return self(selector).text

    def keys(self, *what):
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.browser).send_keys(*what).perform()

    def point(self, selector, x, y, click=False):
        """Move a real pointer to a place inside an element, from its left upper corner."""
        from selenium.webdriver.common.action_chains import ActionChains

        element = self(selector)
        self.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        box = element.size
        chain = ActionChains(self.browser).move_to_element_with_offset(
            element, x - box["width"] / 2, y - box["height"] / 2
        )
        (chain.click() if click else chain).perform()

    def names(self):
        return self.run("return [...document.querySelectorAll('#table tbody th')].map((cell) => cell.textContent)")

    @property
    def agent(self):
        return self.text("#agent-name") if self("#agent").is_displayed() else None

    def place(self, k):
        return self.run("const p = map.points[arguments[0]]; return [p.x, p.y]", k)


def by_name(report):
    return report.gains.set_index("agent")


def test_a_page_begins_with_what_was_fitted_and_text_is_no_or_yes(page):
    found = page("text.html")
    assert "one value of the column “store”" in found.text("#explained")
    assert "to predict “<i>sales”" in found.text("#explained")
    assert "prediction of “<i>sales”" in found.text("#curves-lead")
    [ticks] = [
        [part.text for part in chart.find_elements("css selector", "text")]
        for chart in found.all("#curves svg[role=img]")
        if "kind=" in chart.get_attribute("aria-label")
    ]
    assert [tick for tick in ticks if tick in ("no", "yes", "0.2", "0.5")] == ["no", "yes"]


# -- by clicks --------------------------------------------------------------------------------------------------------


def test_the_first_look_has_all_parts_and_the_right_words(page, files):
    report = files[1]
    found = page("names.html")
    assert found.text("h1") == "What 40 agents learned together"
    cards = found.all(".card")
    assert len(cards) == 2
    gain = report.summary["gains"]["one_model"]
    assert f"{round(gain['share'] * gain['agents'])} of {gain['agents']} agents" in cards[1].text
    assert [heading.text for heading in found.all("#overview .panel > h2, #overview .panel > .bar h2")] == [
        "Who gains",
        "Who is alike",
        "Which features differ",
        "All agents",
        "How it was made",
        "What was sent, and what privacy was spent",
        "The same as text",
    ]
    assert "Nothing was sent" in found.text("#sent")
    assert "No privacy budget was spent" in found.text("#sent")
    assert [row.text for row in found.all("#features tbody th")] == report.features["feature"].tolist()
    assert len(found.all("#curves svg[role=img]")) == 2
    for canvas in found.all("#overview canvas[role=img]"):
        assert len(canvas.get_attribute("aria-label")) > 40
        assert found.run(f"{PIXELS} return pixels(arguments[0]).some((value) => value)", canvas)


def test_an_agent_of_the_table_opens_and_goes_back(page, files):
    found = page("names.html")
    first = found.names()[0]
    found("#table tbody th a").click()
    found.until(lambda: found.agent == first)
    line = by_name(files[1]).loc[first]
    assert f"{line['together']:.4g}" in found.text("#agent .lead")
    assert found.text("#agent .badges").startswith("gains against alone")
    assert found.run("return document.activeElement.id") == "agent-name"
    assert "agent=" in found.browser.current_url
    assert found.browser.title.startswith(first)
    found("#back").click()
    found.until(lambda: found.agent is None)
    assert found.run("return document.activeElement.textContent") == first  # where one was before
    assert "agent=" not in found.browser.current_url


def test_neighbours_lead_from_agent_to_agent_and_the_browser_leads_back(page):
    found = page("names.html", "#agent=ann")
    found.until(lambda: found.agent == "ann")
    near = found("#agent .near a")
    name = near.text
    near.click()
    found.until(lambda: found.agent == name)
    found.browser.back()
    found.until(lambda: found.agent == "ann")
    found("#home").click()
    found.until(lambda: found.agent is None)


def test_the_map_tells_on_hover_and_opens_on_click(page, files):
    found = page("names.html")
    k = NAMES.index("zoe")
    number = found.run("return numberOf.get('zoe')")
    assert list(files[1]._model.agents_)[number] == NAMES[k]
    found.point("#map", *found.place(number))
    found.until(lambda: found("#tip").is_displayed())
    assert found.text("#tip").startswith("zoe")
    assert f"{by_name(files[1]).loc['zoe', 'together']:.4g}" in found.text("#tip")
    found.point("#map", *found.place(number), click=True)
    found.until(lambda: found.agent == "zoe")
    assert not found("#tip").is_displayed()
    assert "stands out" in found.text("#agent .badges")
    assert "income" in found.text("#agent")


def test_the_map_is_dragged_and_zoomed(page):
    from selenium.webdriver.common.action_chains import ActionChains

    found = page("names.html")
    before = found.place(0)
    found("#zoom-in").click()
    found.until(lambda: found.place(0) != before)
    zoomed = found.place(0)
    found.run("document.getElementById('map').scrollIntoView({block: 'center', behavior: 'instant'})")
    ActionChains(found.browser).drag_and_drop_by_offset(found("#map"), 60, 30).perform()
    found.until(lambda: found.place(0) != zoomed)
    moved = found.place(0)
    assert [moved[0] - zoomed[0], moved[1] - zoomed[1]] == pytest.approx([60, 30], abs=3)
    assert found.agent is None
    found("#fit").click()
    found.until(lambda: found.place(0) == before)


def test_points_of_the_charts_open_agents(page, files):
    found = page("names.html")
    spot = found.run("return spots.scatter[0]")
    found.point("#scatter", spot["x"], spot["y"])
    found.until(lambda: found("#tip").is_displayed())
    spot = found.run("return spots.sorted[0]")
    best = files[1].gains.sort_values("gain_alone", ascending=False)["agent"].iloc[0]
    found.point("#sorted", (spot["from"] + spot["to"]) / 2, 60, click=True)
    found.until(lambda: found.agent == best)


def test_against_one_model_is_another_chart(page):
    found = page("names.html")
    before = found.text("#sorted-caption")
    found("#against label:nth-of-type(2)").click()
    assert found.text("#sorted-caption") != before
    assert "one model for all" in found("#scatter").get_attribute("aria-label")


def test_filters_are_one_for_map_and_table(page, files):
    found = page("names.html")
    lost = files[1].gains[files[1].gains["gain_alone"] <= 0]["agent"]
    found("#filters [data-kind=lost]").click()
    assert found("#filters [data-kind=lost]").get_attribute("aria-pressed") == "true"
    assert sorted(found.names()) == sorted(lost)
    assert f"{len(lost)} of 40 agents" in found.text("#map-caption")
    assert found("#only").get_attribute("value") == "lost"
    found("#filters [data-kind=outlier]").click()
    assert set(found.names()) == set(files[1].outliers["agent"])
    found("#filters [data-kind=all]").click()
    found("#filter").send_keys("AGENT 1")
    found.until(lambda: len(found.names()) == 10)
    assert found.names()[0].startswith("agent 1")


def test_the_table_is_sorted_paged_and_copied_as_csv(page, files):
    found = page("names.html")
    table = by_name(files[1])
    assert found.names()[0] == table["gain_alone"].idxmax()
    found("[data-sort=together]").click()
    assert found("th[aria-sort]").text.startswith("Together")
    assert found.names()[0] == table["together"].idxmax()
    found("[data-sort=together]").click()
    assert found.names()[0] == table["together"].idxmin()
    assert len(found.names()) == 25
    found("#next-page").click()
    assert len(found.names()) == 15
    assert found.text("#page-note") == "26 to 40 of 40"
    assert not found("#next-page").is_enabled()
    copied = pd.read_csv(io.StringIO(found.run("return csv()")), keep_default_na=False)
    assert copied["agent"].tolist() == table["together"].sort_values(kind="stable").index.tolist()
    np.testing.assert_allclose(
        copied.set_index("agent")["gain_alone"].astype(float), table["gain_alone"].loc[copied["agent"]], atol=2e-4
    )
    assert found.run("return [quoted('=1+1'), quoted('-a,b'), quoted(-1.5), quoted('ann')]") == [
        "'=1+1",
        '"\'-a,b"',
        "-1.5",
        "ann",
    ]
    found.run("document.getElementById('copy').scrollIntoView({block: 'center', behavior: 'instant'})")
    found("#copy").click()
    found.until(lambda: found.text("#copy") == "Copied")
    found.browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(files[0])})
    found("#download").click()
    found.until(lambda: (files[0] / "agents.csv").exists())
    assert (files[0] / "agents.csv").read_bytes().decode() == found.run("return csv()")


def test_names_that_are_code_are_shown_as_they_are(page):
    found = page("names.html")
    for name in (HTML, "</script>", '"quoted"', "bob & co", "ünï ☂"):
        box = found("#find")
        box.clear()
        box.send_keys(name.replace("☂", ""))
        found.until(lambda: found.all("#found li"))
        assert found.all("#found li")[0].text.split("\n")[0] == name
        found("#found li").click()
        found.until(lambda name=name: found.agent == name)
        assert found.browser.title.startswith(name)
        found.browser.refresh()
        found.until(lambda name=name: found.agent == name)
    assert found.all("main img, #agent b > b") == []
    found("#home").click()
    found.until(lambda: found.agent is None)
    assert "<b>age</b>" in found.text("#features")


def test_shares_are_drawn_with_those_at_the_ends_of_the_intervals(page, files):
    """The others stay as they are, so that no share is more than all of it."""
    table = files[1].features
    part = table["importance"].to_numpy() * (table[["low", "high"]].to_numpy().T / table["sd"].to_numpy()) ** 2
    expected = (part / (1.0 - table["importance"].to_numpy() + part)).T
    assert expected.max() < 1.0
    found = page("names.html")
    drawn = [path.get_attribute("d") for path in found.all("#features tbody path")]
    ends = np.array([[float(x) for x in re.match(r"M([\d.]+) 15H([\d.]+)", path).groups()] for path in drawn])
    unit = float(found.all("#features tbody rect")[1].get_attribute("width")) / table["importance"][0]
    whole = ends[:, 1] < 206.0  # others are cut
    assert whole.any()
    np.testing.assert_allclose(ends[:, 0], expected[:, 0] * unit, rtol=1e-3)
    np.testing.assert_allclose(ends[whole, 1], (expected[:, 1] * unit)[whole], rtol=1e-3)


def test_classes_are_chosen(page):
    from selenium.webdriver.support.ui import Select

    found = page("classes.html", "#agent=ann")
    found.until(lambda: found.agent == "ann")
    before = found.text("#agent table")
    Select(found("#agent-output")).select_by_visible_text("2")
    assert "class 2" in found.text("#agent")
    assert found.text("#agent table") != before
    assert found.run("return document.activeElement.id") == "agent-output"
    found("#home").click()
    found.until(lambda: found.agent is None)
    assert "messages" in found.text("#sent")
    assert "wakes" in found.text("#sent")


def test_a_page_without_gains_says_why(page):
    found = page("bare.html")
    assert "has no rows; to measure gains, give" in found.text("#verdicts")
    assert not found("#gains-charts").is_displayed()
    assert "Error alone" not in found.text("#table")
    assert found("#map").is_displayed()


# -- by keys ----------------------------------------------------------------------------------------------------------


def test_everything_can_be_reached_by_keys(page):
    from selenium.webdriver.common.keys import Keys

    found = page("names.html")
    focus = "const e = document.activeElement; return [e.tagName, e.id, e.textContent.slice(0, 40)]"
    found.keys(Keys.TAB)
    assert found.run(focus)[2] == "Skip to the report"
    found.keys("/")
    assert found.run(focus)[1] == "find"
    found.keys("agent 2")
    found.until(lambda: len(found.all("#found li")) == 8)
    assert found("#find").get_attribute("aria-expanded") == "true"
    found.keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_UP)
    assert found("#found [aria-selected=true]").text.startswith("agent 21")
    assert found("#find").get_attribute("aria-activedescendant") == "found-1"
    found.keys(Keys.ENTER)
    found.until(lambda: found.agent == "agent 21")
    found.keys(Keys.ESCAPE)
    found.until(lambda: found.agent is None)
    found.keys("/", "nobody is called so")
    found.until(lambda: "No agent" in found.text("#found"))
    found.keys(Keys.ENTER)
    assert found.agent is None
    found.keys(Keys.ESCAPE)
    assert found("#find").get_attribute("value") == ""
    found.run("document.querySelector('#table tbody a').focus()")
    name = found.run(focus)[2]
    found.keys(Keys.ENTER)
    found.until(lambda: found.agent == name)
    found.keys(Keys.TAB)
    assert found.run("return getComputedStyle(document.activeElement).outlineStyle") != "none"
    found.run("document.getElementById('back').focus()")
    found.keys(Keys.ENTER)
    found.until(lambda: found.agent is None)
    assert found.run(focus)[2] == name
    found.run("document.getElementById('map').focus()")
    before = found.place(0)
    found.keys("+")
    found.until(lambda: found.place(0) != before)


def test_tabs_go_through_everything_that_can_be_used(page):
    from selenium.webdriver.common.keys import Keys

    found = page("names.html")
    seen, focus = (
        [],
        "const e = document.activeElement; return e.id || e.dataset.sort || e.dataset.kind || e.value || e.tagName",
    )
    for _ in range(90):
        found.keys(Keys.TAB)
        seen.append(found.run(focus))
    order = [
        "home",
        "find",
        "theme",
        "alone",
        "colour",
        "zoom-in",
        "all",
        "map",
        "filter",
        "only",
        "copy",
        "download",
        "name",
    ]
    places = [seen.index(name) for name in order]
    assert places == sorted(places)
    assert "next-page" in seen


# -- looks ------------------------------------------------------------------------------------------------------------


def test_every_control_has_a_name_and_every_landmark_is_there(page):
    found = page("names.html")
    nameless = """return [...document.querySelectorAll('button, input, select, a, [role=img]')].filter((e) => {
        const label = e.labels && e.labels.length ? e.labels[0].textContent : '';
        return !(e.getAttribute('aria-label') || label || e.textContent || '').trim();
    }).map((e) => e.outerHTML.slice(0, 100))"""
    levels = """return [...document.querySelectorAll('main :is(h1, h2, h3, h4)')]
        .filter((e) => e.offsetParent).map((e) => +e.tagName[1])"""
    for at in ("", "#agent=zoe"):
        found = page("names.html", at)
        assert found.run(nameless) == []
        for landmark in ("header", "nav", "main", "footer"):
            assert len(found.all(landmark)) == 1
        headings = found.run(levels)
        assert headings[0] == 1
        assert headings.count(1) == 1
        assert all(later <= before + 1 or later == 4 for before, later in itertools.pairwise(headings))
        every = found.run("return [...document.querySelectorAll('[id]')].map((e) => e.id)")
        assert len(every) == len(set(every))


def test_light_and_dark_are_as_the_system_has_them_or_as_asked_for(page):
    ground = "return getComputedStyle(document.body).backgroundColor"
    pixel = f"{PIXELS} return pixels(document.getElementById('scatter')).join()"
    light = page("names.html")
    bright, drawn = light.run(ground), light.run(pixel)
    dark = page("names.html", dark=True)
    black = dark.run(ground)
    assert bright != black
    assert dark.run(pixel) != drawn
    dark("#theme").click()
    assert dark.run(ground) == bright
    assert dark("#theme").get_attribute("aria-label") == "Colours: light"
    assert dark.run(pixel) == drawn
    again = page("names.html", dark=True)  # it is remembered
    assert again.run(ground) == bright
    again("#theme").click()
    assert again.run(ground) == black
    again("#theme").click()
    assert again("#theme").get_attribute("aria-label") == "Colours: as the system has them"


@pytest.mark.parametrize("name", ["names.html", "classes.html", "many.html"])
def test_a_phone_has_all_of_it_without_scrolling_sideways(page, name):
    found = page(name, width=360)
    assert found.run("return document.documentElement.scrollWidth") <= 360
    wide = """return [...document.querySelectorAll('main .panel, main .card, canvas, header')]
        .filter((e) => e.offsetParent && e.getBoundingClientRect().right > 361).length"""
    assert found.run(wide) == 0
    found = page(name, f"#agent={'ann' if name != 'many.html' else 'user%2000007'}", width=360)
    found.until(lambda: found.agent is not None)
    assert found.run("return document.documentElement.scrollWidth") <= 360


def test_it_prints(page):
    found = page("names.html")
    pdf = found.browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"]
    assert len(pdf) > 50_000
    found.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert not found(".top").is_displayed()
    assert found("#features").is_displayed()
    found.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


# -- many -------------------------------------------------------------------------------------------------------------


def test_ten_thousand_agents(page, files):
    from selenium.webdriver.common.keys import Keys

    assert (files[0] / "many.html").stat().st_size < 15_000_000
    found = page("many.html")
    assert found.text("h1") == "What 10,000 agents learned together"
    assert found.text("#page-note") == "1 to 25 of 10,000"
    assert len(found.all("#table tbody tr")) == 25
    found.keys("/", "user 09876")
    found.until(lambda: len(found.all("#found li")) == 1)
    found.keys(Keys.ENTER)
    found.until(lambda: found.agent == "user 09876")
    assert len(found.all("#agent .near a")) == 6
    found.keys(Keys.ESCAPE)
    found.until(lambda: found.agent is None)
    found("#filter").send_keys("user 0001")
    found.until(lambda: found.text("#page-note") == "1 to 10 of 10")
    number = found.run("return numberOf.get('user 00012')")
    found.point("#map", *found.place(number))
    found.until(lambda: found("#tip").is_displayed() and found.text("#tip").startswith("user 0001"))
