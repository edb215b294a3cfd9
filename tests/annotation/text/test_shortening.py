"""Texts in short are not cut within a word."""

import pytest

from annotation.text.identity import shortened


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("How hot?", "How hot?"),
        ("How  hot\nis it?", "How hot is it?"),
        ("How hot is the water", "How hot is…"),
        ("https://example.org/long", "https://exa…"),
        ("茶" * 20, "茶" * 11 + "…"),
    ],
)
def test_a_text_is_cut_between_words_where_it_has_any(text: str, short: str):
    assert shortened(text, 14 if "\n" in text else 12) == short
