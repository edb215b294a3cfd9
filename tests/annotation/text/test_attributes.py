"""Attributes of HTML elements that are computed in Python."""

from django.utils.safestring import mark_safe

from annotation.statistics.plots import Bar
from annotation.text.rendering import attributes
from annotation.views.labelling.screen import VerdictChoice


def test_attributes_are_escaped_and_what_is_not_so_is_left_out():
    written = attributes(
        data_key='"<&', data_version=0, hidden=True, checked=False, title=None, data_safe=mark_safe("&gt;")
    )
    assert written == 'data-key="&quot;&lt;&amp;" data-version="0" hidden data-safe="&gt;"'


def test_a_choice_is_a_radio_button_with_its_keys_and_its_label():
    choice = VerdictChoice("win:token:4", "A is <much> better", "1", "A", 4)
    assert choice.option(side="left", is_chosen=True) == (
        '<label class="option option--step option--left" title="A is &lt;much&gt; better (1)" '
        'data-strength="4">'
        '<input type="radio" name="choice" value="win:token:4" data-key="1" '
        'data-label="A is &lt;much&gt; better" checked> '
        '<span class="option__face"><span class="visually-hidden">A is &lt;much&gt; better</span>'
        '<span aria-hidden="true">1</span></span></label>'
    )
    plain = VerdictChoice("equal", "Equal", "=", letter_key="e").option(is_chosen=False)
    assert 'class="option option--plain" title="Equal (=, e)"' in plain
    assert 'data-key="=" data-letter="e" data-label="Equal">' in plain
    assert 'Equal <kbd class="only-with-script">=</kbd>' in plain


def test_a_bar_stands_where_it_is_in_every_language(settings):
    settings.LANGUAGE_CODE = "de"
    bar = Bar(value=2, x=1.5, y=0.25, width=3.0, height=7.0)
    assert bar.attributes == 'x="1.5" y="0.25" width="3.0" height="7.0"'
