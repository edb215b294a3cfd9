"""The licence link of a hub's card: whoever wrote the card may have written anything."""

from types import SimpleNamespace

import pytest

from training.files.hub import _licence

PAGE = "https://huggingface.co/maker/model"
GOOD = "https://huggingface.co/maker/model/blob/main/LICENSE"
BAD = (
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "http://huggingface.co/maker/model",
    "https://huggingface.co.evil.example/x",
    "https://huggingface.co@evil.example/x",
    "https://evil.example/huggingface.co",
    "https://huggingface.co:8443/x",
    "//huggingface.co/x",
    "LICENSE",
    "https://[",
    "https://huggingface.co\\@evil.example/",
    " https://huggingface.co/x",
    "",
    None,
)


def licence_of(link: object) -> str:
    card = SimpleNamespace(to_dict=lambda: {"license": "other", "license_name": "mine", "license_link": link})
    name, url = _licence(SimpleNamespace(card_data=card, tags=[]), "maker/model")
    assert name == "mine"
    return url


def test_a_link_to_the_hub_is_shown():
    assert licence_of(GOOD) == GOOD


@pytest.mark.parametrize("link", BAD)
def test_any_other_link_gives_way_to_the_models_page(link: object, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    assert licence_of(link) == PAGE
