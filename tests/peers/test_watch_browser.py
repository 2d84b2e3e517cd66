"""The page of ``coterie watch`` in a real browser: Debian's chromium and chromium-driver."""

from __future__ import annotations

import json
import time
from urllib.parse import urlsplit

import pytest
from watched import lab_folder, peer_folder, recording

from coterie.peers.app.watch.server import Server
from coterie.peers.app.watch.sources import source_of
from tests import browsing

pytestmark = [pytest.mark.browser, browsing.needs_browser]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    yield from browsing.started(tmp_path_factory)


@pytest.fixture
def page(browser):
    """Opens what is to be watched; at the end, nothing may have gone wrong, and nobody else have been asked."""
    servers = []

    def opened(what, every=0.2):
        server = Server(source_of(what), every=every)
        server.start()
        servers.append(server)
        browsing.forget(browser)
        browser.get(server.url)
        return Page(browser)

    yield opened
    complaints = browsing.complaints(browser)
    asked = {urlsplit(url).netloc for url in browsing.requests_of(browser) if not url.startswith(("data:", "about:"))}
    browser.get("about:blank")
    for server in servers:
        server.close()
    assert complaints == []
    assert asked == {f"127.0.0.1:{server.port}" for server in servers}


class Page:
    def __init__(self, browser):
        self.browser = browser

    def run(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0]).innerText", selector)

    def texts(self, selector):
        return self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)", selector)

    def click(self, selector, text=None):
        which = "find(e => !arguments[1] || e.innerText == arguments[1])"
        find = f"return [...document.querySelectorAll(arguments[0])].{which}"
        one = self.run(find, selector, text)
        assert one is not None, (selector, text)
        one.click()

    def until(self, holds, what):
        deadline = time.monotonic() + browsing.LONG
        while not (found := holds()):
            assert time.monotonic() < deadline, f"{what} is still not so; the page says: {self.text('body')[:500]}"
            time.sleep(0.05)
        return found

    def column(self, table, k):
        return self.texts(f"#{table} tbody td:nth-child({k})")

    def painted(self, canvas):
        """How many pixels of a canvas are not empty."""
        script = """
            const canvas = document.getElementById(arguments[0]);
            const pen = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", {willReadFrequently: true});
            pen.drawImage(canvas, 0, 0);
            const data = pen.getImageData(0, 0, canvas.width, canvas.height).data;
            let count = 0;
            for (let k = 3; k < data.length; k += 4) count += data[k] > 0;
            return count;
        """
        return self.run(script, canvas)

    def settled(self):
        self.until(lambda: self.run("return document.documentElement.dataset.layout") == "done", "the layout")
        return self


def test_a_peer(page, tmp_path):
    folder = peer_folder(tmp_path / "ann", private=True)
    ann = page(folder)
    ann.until(lambda: ann.text("#title") == "ann", "the name")
    ann.until(lambda: ann.column("senders", 1), "the senders")
    assert ann.text("#state") == "running"
    assert sorted(ann.column("agents", 1)) == ["ann", "bob", "cleo", "dan"]
    tiles = ann.text("#tiles")
    for words in (
        "0.800",
        "0.700 alone",
        "together",
        "1 of 2",
        "3 of 40",
        "epsilon 1",
        "disk (2)",
        "moves it most\nbob",
    ):
        assert words in tiles, words
    assert "no space left on device" in ann.text("#events")
    assert {"bob", "cleo", "eve"} == set(ann.column("senders", 1))
    assert "9 signature" in ann.text("#senders")
    assert "12 s ago" in ann.text("#agents")
    ann.settled()
    assert ann.painted("map") > 500
    assert "4 members and 2 edges" in ann.run("return document.getElementById('map').ariaLabel")


def test_curves_grow(page, tmp_path):
    folder = peer_folder(tmp_path / "ann")
    ann = page(folder, every=0.1)
    counted = "return seen.history.times.length"
    ann.until(lambda: ann.run(counted) >= 1, "the first moment")
    before, shown = ann.run(counted), ann.painted("chart")
    for k in range(5):
        peer_folder(folder, score=0.8 + 0.03 * k, at=time.time() + k)
        time.sleep(0.2)
    ann.until(lambda: ann.run(counted) >= before + 3, "more moments")
    ann.until(lambda: ann.painted("chart") != shown, "another picture")
    ann.until(lambda: "0.920" in ann.text("#tiles"), "the last score")
    ann.until(lambda: "0.920" in ann.run("return document.getElementById('chart').ariaLabel"), "the words")


def test_a_lab_is_sorted_and_one_of_its_peers_chosen(page, tmp_path):
    lab = page(lab_folder(tmp_path / "lab", 20))
    lab.until(lambda: len(lab.column("agents", 1)) == 20, "the table")
    assert lab.column("agents", 1) == [f"p{i}" for i in range(20)]
    assert "up\n18\nof 20" in lab.text("#tiles")
    assert "killed" in lab.text("#agents")
    lab.click("#agents th button", "wakes")
    numbers = [int(text.replace(",", "")) for text in lab.column("agents", 6) if text != "–"]
    assert numbers == sorted(numbers, reverse=True)
    assert len(numbers) == 19
    assert lab.run("return document.querySelector('#agents th[aria-sort]').innerText") == "wakes"
    lab.click("#agents th button", "wakes")
    assert [int(text.replace(",", "")) for text in lab.column("agents", 6) if text != "–"] == numbers[::-1]
    assert lab.column("agents", 1)[-1] == "p19"  # what is not known comes last
    lab.until(lambda: lab.column("senders", 4), "messages by sender")
    totals = [int(text) for text in lab.column("senders", 4)]
    assert totals == sorted(totals, reverse=True)
    lab.click("#agents td button", "p7")
    lab.until(lambda: lab.text("#chart-note") == "p7", "the line of p7")
    lab.until(
        lambda: (
            "of p7: now 0.807 together, 0.700 alone" in lab.run("return document.getElementById('chart').ariaLabel")
        ),
        "its curve",
    )
    lab.until(lambda: sorted(lab.column("senders", 1)) == ["p6", "p8"], "its senders")
    assert lab.texts("#agents tr[aria-selected=true] td:first-child") == ["p7"]
    lab.click("#everyone")
    lab.until(lambda: "bands" in lab.text("#chart-note"), "everybody again")


def test_with_the_keyboard_alone(page, tmp_path):
    from selenium.webdriver.common.keys import Keys

    lab = page(lab_folder(tmp_path / "lab", 8)).settled()
    lab.until(lambda: lab.column("agents", 1), "the table")
    reached = set()
    active = "const e = document.activeElement; return e.id || e.closest('table')?.id || e.className || e.tagName"
    for _ in range(60):
        lab.browser.switch_to.active_element.send_keys(Keys.TAB)
        reached.add(lab.run(active))
    assert {"skip", "find", "zoom-in", "zoom-out", "fit", "map", "chart", "agents", "senders"} <= reached
    before = lab.run("return map.view.k")
    lab.run("document.getElementById('map').focus()")
    lab.browser.switch_to.active_element.send_keys("+")
    assert lab.run("return map.view.k") > before
    lab.run("document.getElementById('find').focus()")
    lab.browser.switch_to.active_element.send_keys("p3", Keys.ENTER)
    lab.until(lambda: lab.text("#chart-note") == "p3", "p3")
    lab.run("document.getElementById('map').focus()")
    lab.browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    lab.until(lambda: lab.text("#chart-note") != "p3", "everybody again")


def test_a_thousand_agents(page, tmp_path):
    many = page(recording(tmp_path / "run.jsonl", 1000, 40)).settled()
    many.until(lambda: "1,000" in many.text("#subtitle"), "the number of agents")
    assert many.painted("map") > 5000
    assert len(many.column("agents", 1)) == 100
    assert many.run("return map.layout.spent") < 8000  # milliseconds: its budget, and a slow last step
    # Zoom in every frame for a second or two.
    script = """
        const done = arguments[0];
        let frames = 0;
        const began = performance.now();
        const step = () => {
            map.zoom(frames % 2 ? 1.1 : 1 / 1.1);
            frames += 1;
            if (performance.now() - began < 1500) requestAnimationFrame(step);
            else done(1000 * frames / (performance.now() - began));
        };
        requestAnimationFrame(step);
    """
    assert many.browser.execute_async_script(script) > 4.0  # frames in a second, without a graphics card
    assert float(many.run("return document.documentElement.dataset.draw")) < 250.0
    x, y = many.run(
        "map.refit(); const box = document.getElementById('map').getBoundingClientRect();"
        "return [map.x[17] * map.view.k + map.view.x, map.y[17] * map.view.k + map.view.y]"
    )
    script = """
        const canvas = document.getElementById("map"), box = canvas.getBoundingClientRect();
        const place = {clientX: box.left + arguments[0], clientY: box.top + arguments[1], pointerId: 1};
        canvas.dispatchEvent(new PointerEvent("pointermove", place));
    """
    many.run(script, x, y)
    name = many.text("#map-tip").split(" ")[0]
    assert name.startswith("a")
    many.run("choose('a999')")
    many.until(lambda: many.text("#chart-note") == "a999", "the line of one")


def test_on_a_phone_nothing_is_wider_than_the_screen(page, tmp_path):
    lab = page(lab_folder(tmp_path / "lab", 20))
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    lab.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        lab.until(lambda: lab.column("agents", 1), "the table")
        lab.settled()
        assert lab.run("return document.documentElement.scrollWidth") <= 390
        assert lab.run("return document.getElementById('map').clientWidth") > 300
    finally:
        lab.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_light_and_dark(page, tmp_path):
    lab = page(lab_folder(tmp_path / "lab", 8)).settled()
    seen = {}
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        lab.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        style = "return [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        paper, ink = (brightness(colour) for colour in lab.run(style))
        seen[scheme] = paper
        assert (max(paper, ink) + 0.05) / (min(paper, ink) + 0.05) > 7.0  # contrast as WCAG 2 measures it
    lab.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert seen["dark"] < 0.1 < 0.8 < seen["light"]


def brightness(colour):
    parts = [int(part) / 255 for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_nothing_there_says_what_to_do(page, tmp_path):
    folder = tmp_path / "ann"
    folder.mkdir()
    (folder / "identity.json").write_text("{}")
    ann = page(folder)
    ann.until(lambda: "coterie peer run" in ann.text("#message"), "what to do")
    assert ann.text("#state") == "waiting"
    peer_folder(folder)
    ann.until(lambda: ann.text("#state") == "running" and ann.column("agents", 1), "the peer, when it has come")
    peer_folder(folder, pid=2**22 + 1)
    ann.until(lambda: ann.text("#state") == "not running", "that it has stopped")
    assert "coterie peer run" in ann.text("#message")


def test_names_are_text_and_nothing_else(page, tmp_path):
    path = recording(tmp_path / "run.jsonl", 3, 2)
    head, *rest = path.read_text().splitlines()
    head = json.loads(head) | {"names": ["<img src=x onerror=alert(1)>", "&amp;", "a'\"b"], "problem": "<b>bold</b>"}
    path.write_text("\n".join([json.dumps(head), *rest]) + "\n")
    odd = page(path)
    odd.until(lambda: len(odd.column("agents", 1)) == 3, "the table")
    assert set(odd.column("agents", 1)) == {"<img src=x onerror=alert(1)>", "&amp;", "a'\"b"}
    assert odd.run("return document.querySelectorAll('main img, b').length") == 0
