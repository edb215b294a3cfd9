"""Parts of a page that are rendered once in each language."""

import pytest
from django.template import TemplateSyntaxError, engines
from django.utils import translation

ENGINE = engines["django"]


def test_a_constant_part_is_rendered_once_in_each_language(monkeypatch):
    template = ENGINE.from_string(
        '{% load i18n %}{% constant %}<b>{% translate "Skip" %}</b> {% icon "x" %}{% endconstant %}'
    )
    first = template.render()
    assert "<b>Skip</b>" in first
    assert "<svg" in first
    with translation.override("de"):
        german = template.render()
    assert german != first
    node = template.template.nodelist[1]  # type: ignore[attr-defined]
    monkeypatch.setattr(node, "_nodes", None)
    assert template.render() == first
    with translation.override("de"):
        assert template.render() == german


@pytest.mark.parametrize(
    "part",
    [
        "{{ user }}",
        "{% csrf_token %}",
        "{% if user %}a{% endif %}",
        "{% for a in b %}a{% endfor %}",
        "{% translate name %}",
        '{% translate "Skip" as word %}',
        "{% blocktranslate %}{{ name }}{% endblocktranslate %}",
        "{% icon name %}",
        '{% include "annotation/saved.html" %}',
        '{% url "projects" %}',
    ],
)
def test_a_constant_part_refuses_what_a_request_could_change(part):
    with pytest.raises(TemplateSyntaxError, match="text, translations and icons"):
        ENGINE.from_string("{% load i18n %}{% constant %}" + part + "{% endconstant %}")
