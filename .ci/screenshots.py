"""Take the guide's pictures from the demo project: one page each, light and dark, in static/guide/.

    .venv/bin/python .ci/screenshots.py             all pictures that pages of the guide show
    .venv/bin/python .ci/screenshots.py round run   these alone
    --width 360 --into FOLDER                       another width, into another folder, to look at
    --home FOLDER                                   keep the installation there for the next time

It starts an installation of its own and needs Chromium.
"""

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "static" / "guide"
WIDTH, HEIGHT = 1400, 900
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
QUALITY = 55
"""Of WebP: texts stay sharp, and all pictures together take a few megabytes."""
NAME, PASSWORD = "lead", "a kettle of four words"
P = "/projects/demo/"
SHOTS = {
    "home": "/",
    "overview": P,
    "labelling": f"{P}label/",
    "my-work": f"{P}my-work/",
    "comparisons": f"{P}data/comparisons/",
    "comparison": f"{P}data/comparisons/?order=oldest > main a[href*='/items/']",
    "trace": f"{P}data/comparisons/?text=Bern > main a[href*='/items/']",
    "prompts": f"{P}data/prompts/",
    "prompt": f"{P}data/prompts/ > main a[href*='/demo/prompts/']:not([href$='new/'])",
    "annotations": f"{P}data/annotations/",
    "transfers": f"{P}transfers/",
    "export": f"{P}export/",
    "statistics": f"{P}statistics/",
    "annotators": f"{P}annotators/",
    "annotator": f"{P}annotators/ > main a[href*='/annotators/']:not([href$='/annotators/'])",
    "reviews": f"{P}reviews/",
    "gold": f"{P}gold/",
    "judges": f"{P}judges/",
    "suggestions": f"{P}suggestions/",
    "live": f"{P}live/",
    "drift": f"{P}drift/",
    "rounds": f"{P}rounds/",
    "round": f"{P}rounds/1/",
    "recipe": f"{P}rounds/3/recipe/",
    "runs": f"{P}runs/",
    "run": f"{P}runs/ > a:text('demo-round-2-policy')",
    "checkpoints": "/checkpoints/?project=demo",
    "checkpoint": "/checkpoints/demo-round-1-policy/",
    "evaluation": "/checkpoints/demo-round-1-policy/evaluation/",
    "compare": "/compare/?project=demo",
    "compared": "/compare/?project=demo > main a[href^='/compare/']:not([href*='?'])",
    "leaderboard": f"{P}leaderboard/",
    "arenas": f"{P}arenas/",
    "conversations": f"{P}conversations/",
    "conversation": f"{P}conversations/ > main a[href*='/conversations/']:not([href$='/conversations/'])",
    "feedback": f"{P}feedback/",
    "feedback-figures": f"{P}feedback/figures/",
    "feedback-settings": f"{P}feedback/settings/",
    "settings": f"{P}settings/",
    "questions": f"{P}settings/questions/",
    "preview": f"{P}settings/preview/",
    "rubrics": f"{P}rubrics/",
    "rubric": f"{P}rubrics/ > main a[href*='/rubrics/']:not([href$='/rubrics/'], [href$='new/'])",
    "conversation-settings": f"{P}settings/conversations/",
    "members": f"{P}members/",
    "allocation": f"{P}allocation/",
    "invitations": f"{P}invitations/",
    "webhooks": f"{P}webhooks/",
    "start": "/start/",
    "base-models": "/base-models/",
    "status": "/status/",
    "admin": "/admin/",
    "guide": "/guide/",
    "help": f"{P}label/",
}
"""Name of a picture → its address; after ` > ` the first link on it that leads to the page.

`help` comes last: it annotates."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="pictures to take; those that the guide shows if none is named",
    )
    parser.add_argument("--into", type=Path, default=PICTURES)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--home", type=Path, help="keep the installation in this folder, and use it again")
    asked = parser.parse_args()
    if unknown := sorted(set(asked.names) - set(SHOTS)):
        sys.exit(f"No such picture: {', '.join(unknown)}. There are: {', '.join(SHOTS)}.")
    asked.into.mkdir(parents=True, exist_ok=True)
    wanted = {name: SHOTS[name] for name in asked.names or SHOTS if asked.names or name in _shown()}
    with tempfile.TemporaryDirectory() as home, _installation(asked.home or Path(home)) as address:
        _take(address, wanted, asked.into, asked.width)


def _shown() -> set[str]:
    """Return the names of the pictures that the guide and the README show."""
    pages = [ROOT / "README.md", *(ROOT / "webapp" / "guide").rglob("*.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    return set(re.findall(r"static/guide/([\w-]+)-light\.webp", text))


@contextmanager
def _installation(home: Path) -> Iterator[str]:
    """Start Rondo with the demo project in `home`; yield its address."""
    environment = {
        **os.environ,
        "RONDO_HOME": str(home),
        "RONDO_LOG_LEVEL": "ERROR",
        "DJANGO_SUPERUSER_PASSWORD": PASSWORD,
    }
    environment.pop("DATABASE_URL", None)

    def manage(*words: str) -> None:
        subprocess.run([sys.executable, "manage.py", *words], cwd=ROOT, env=environment, check=True)

    if not (home / "rondo.sqlite3").exists():
        manage("migrate", "--verbosity", "0")
        manage("createsuperuser", "--noinput", "--username", NAME, "--email", "")
        manage("demo")
    port = os.environ.get("RONDO_SCREENSHOT_PORT", "8765")
    command = [sys.executable, "manage.py", "up", "--port", port, "--no-model-server", "--no-first-project"]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(process, f"{address}/health/live")
        yield address
    finally:
        process.terminate()
        process.wait(timeout=60)


def _wait_for(process: subprocess.Popen[bytes], address: str) -> None:
    for _ in range(600):
        if process.poll() is not None:
            sys.exit("`manage.py up` ended before a page answered; its messages stand above.")
        try:
            with urlopen(address, timeout=5):  # noqa: S310 - our own server
                return
        except OSError:
            time.sleep(0.5)
    sys.exit(f"Nothing answers at {address} after five minutes.")


def _take(address: str, wanted: dict[str, str], into: Path, width: int) -> None:
    found = os.environ.get("RONDO_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found,
            args=["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"],
        )
        page = browser.new_page(viewport={"width": width, "height": HEIGHT}, reduced_motion="reduce")
        # The first page of a process takes long on a busy machine.
        page.set_default_timeout(120_000)
        page.goto(f"{address}/login/")
        page.get_by_label("Username").fill(NAME)
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{address}/")
        for name, path in wanted.items():
            _one(page, address, name, path, into)
        browser.close()


def _first_pass(page: Page) -> None:
    """Judge until the suggestions for a final pass are there: a share of comparisons gets none."""
    for _ in range(10):
        page.wait_for_selector("form#judgment")
        page.keyboard.press("=")
        page.keyboard.press("Control+Enter")
        page.wait_for_timeout(1500)
        if page.locator("#help").count():
            return


def _one(page: Page, address: str, name: str, path: str, into: Path) -> None:
    """Write one page in both themes."""
    first, _, link = path.partition(" > ")
    page.goto(address + first, wait_until="networkidle")
    if link:
        target = page.locator(link).first.get_attribute("href")
        page.goto(f"{address}{target}", wait_until="networkidle")
    if name == "help":
        _first_pass(page)
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]  # one of the two
        page.wait_for_timeout(250)
        picture = Image.open(io.BytesIO(page.screenshot()))
        picture.convert("RGB").save(into / f"{name}-{theme}.webp", quality=QUALITY, method=6)
    wider = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    title = re.sub(r" · Rondo$", "", page.title())
    print(f"{name:22} {title[:40]:40} {page.url.removeprefix(address)}{' TOO WIDE' if wider > 0 else ''}")


if __name__ == "__main__":
    main()
