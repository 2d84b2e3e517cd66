"""A real browser for tests of pages: Debian's chromium and chromium-driver."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("selenium", reason="needs selenium, of the dev extra")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None,
    reason="needs chromium and chromedriver: apt-get install chromium chromium-driver",
)
#: Seconds that anything may take on a busy machine.
LONG = 60.0


def started(tmp_path_factory: Any) -> Iterator[Any]:
    """A browser that asks nobody for anything by itself; it ends with the fixture that yields from here."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    arguments = ["--headless=new", "--disable-dev-shm-usage", "--disable-background-networking", "--no-first-run"]
    arguments += ["--disable-component-update", "--disable-sync", "--disable-gpu", "--window-size=1280,900"]
    arguments += ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    for argument in [*arguments, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"]:
        options.add_argument(argument)
    options.add_experimental_option("prefs", {"download.default_directory": str(tmp_path_factory.mktemp("downloads"))})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def forget(browser: Any) -> None:
    """An empty page, and logs from here on: what was before is not ours."""
    browser.get("about:blank")
    for kind in ("browser", "performance"):
        browser.get_log(kind)


def complaints(browser: Any) -> list[dict[str, Any]]:
    """What went wrong on the page."""
    return [line for line in browser.get_log("browser") if line["level"] in ("SEVERE", "WARNING")]


def requests_of(browser: Any) -> Iterator[str]:
    """The addresses that the page asked for."""
    for line in browser.get_log("performance"):
        message = json.loads(line["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            yield message["params"]["request"]["url"]
