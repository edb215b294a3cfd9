"""The Chromium that tests drive."""

import os
import shutil
from pathlib import Path

# The shell is the same engine without windows: a new page costs it a sixth of the processor time.
_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_ON_A_MAC = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")


def find_chromium() -> str | None:
    """Return the program named by RONDO_CHROMIUM, else the first that is installed; None without any."""
    if named := os.environ.get("RONDO_CHROMIUM"):
        return named
    installed = next(filter(None, map(shutil.which, _NAMES)), None)
    return installed or (str(_ON_A_MAC) if _ON_A_MAC.exists() else None)
