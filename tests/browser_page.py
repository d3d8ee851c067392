"""Chromium, driven by Selenium over a report's page: what it asked for, what it complained of, what it shows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
_SWITCHES = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip


def missing() -> str:
    """What keeps a browser from being driven here; empty where nothing does."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed (pip install '.[check]')"
    absent = [path for path in (CHROMIUM, DRIVER) if shutil.which(path) is None]
    return f"no {' and no '.join(absent)} (Debian: apt-get install chromium chromium-driver)" if absent else ""


class Browser:
    """One window. Every check of what was asked for or complained of covers all since the last one."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path, place: str = "") -> None:
        """A page by its file; a page that is open already is left first, so that it really loads."""
        self.driver.get("about:blank")
        self.driver.get(path.absolute().as_uri() + place)

    def size(self, width: int, height: int, scale: float = 1) -> None:
        """The window's inner size."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def ask(self, script: str, *values: Any) -> Any:
        """What a piece of JavaScript returns."""
        return self.driver.execute_script(f"return {script}", *values)

    def wait(self, script: str, seconds: float = 10) -> Any:
        """The same, once it is true."""
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, seconds, 0.02).until(lambda _: self.ask(script))

    def press(self, *keys: str) -> None:
        """Keys, one after the other, to whatever has the focus."""
        from selenium.webdriver import ActionChains

        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def interactive(self) -> float:
        """Seconds from the start of the load to a page that can be used."""
        return float(self.wait("performance.getEntriesByName('interactive')[0]?.startTime")) / 1000

    def requests(self) -> list[str]:
        """The addresses that were asked for."""
        result = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [each for each in result if each["method"] == "Network.requestWillBeSent"]
        return [each["params"]["request"]["url"] for each in sent]

    def complaints(self) -> list[str]:
        """What stands on the console."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@contextmanager
def browser(profile: Path, width: int = 1280, height: int = 900) -> Iterator[Browser]:
    """A browser with an empty profile of its own."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for switch in (*_SWITCHES, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(service=Service(executable_path=DRIVER), options=options)
    try:
        opened = Browser(driver)
        opened.size(width, height)
        driver.get("about:blank")  # what the browser's own first page asked for is no page's
        opened.requests(), opened.complaints()
        yield opened
    finally:
        driver.quit()
