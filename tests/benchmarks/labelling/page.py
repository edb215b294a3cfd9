"""The labelling page's size and the time until it can be used, in a browser with an empty cache.

    python -m tests.benchmarks.labelling.page

Usable is when the page's script has looked at the screen and says what is still to do. Median of seven.
"""

import json
import os
import statistics
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from tests.benchmarks.labelling.server import serving

# Asked once an animation frame, in the page's own clock, which begins with the navigation.
_LOOK = """
const look = () => {
  if (document.querySelector("#submit-status")?.textContent.trim()) window.usable ??= performance.now();
  else requestAnimationFrame(look);
};
addEventListener("DOMContentLoaded", look);
"""


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="rondo-page-") as folder,
        serving(Path(folder), tasks=1_000, annotators=1) as served,
        sync_playwright() as playwright,
    ):
        chromium = playwright.chromium.launch(
            executable_path=os.environ.get("RONDO_CHROMIUM", "/usr/bin/chromium"), args=["--no-sandbox"]
        )
        address = f"http://127.0.0.1:{served.port}/projects/load/label/"
        loads = [_load(chromium, address, served.sessions[0]) for _ in range(7)]
        chromium.close()
    report = {name: round(statistics.median(load[name] for load in loads), 1) for name in loads[0]}
    print(json.dumps({**report, "load": os.getloadavg()[0]}))


def _load(chromium: Browser, address: str, session: str) -> dict[str, float]:
    context = chromium.new_context(bypass_csp=True)
    context.add_cookies([{"name": "sessionid", "value": session, "url": address}])
    page = context.new_page()
    page.add_init_script(_LOOK)
    page.goto(address, wait_until="load")
    page.wait_for_function("window.usable")
    load = _weigh(page)
    context.close()
    return load


def _weigh(page: Page) -> dict[str, float]:
    sizes = page.evaluate(
        "performance.getEntries().filter((one) => ['navigation', 'resource'].includes(one.entryType))"
        ".map((one) => one.transferSize)"
    )
    usable = page.evaluate("window.usable")
    return {"requests": len(sizes), "kilobytes_sent": sum(sizes) / 1000, "usable_ms": usable}


if __name__ == "__main__":
    main()
