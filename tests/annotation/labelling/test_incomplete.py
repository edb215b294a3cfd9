"""The browser asks for what is missing in the words of the form and the service."""

from pathlib import Path

import pytest

from annotation.services.judgments.checks import Incomplete

SCRIPTS = Path(__file__).resolve().parents[3] / "static" / "js"


@pytest.mark.parametrize("lack", Incomplete)
def test_the_browser_says_what_is_missing_in_the_same_words(lack: Incomplete):
    scripts = "".join((SCRIPTS / name).read_text() for name in ("label.js", "label-answers.js"))
    assert f'translate("{lack}")' in scripts
