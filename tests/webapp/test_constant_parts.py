"""Tags of every template: parts rendered once in each language, and attributes of an element."""

import pytest
from django.template import Context, Engine, TemplateSyntaxError
from django.utils import translation

ENGINE = Engine.get_default()


def test_a_constant_part_is_rendered_once_in_each_language(monkeypatch):
    template = ENGINE.from_string(
        '{% load i18n %}{% constant %}<b>{% translate "Skip" %}</b> {% icon "x" %}{% endconstant %}'
    )
    first = template.render(Context())
    assert "<b>Skip</b>" in first
    assert "<svg" in first
    with translation.override("de"):
        german = template.render(Context())
    assert german != first
    node = template.nodelist[1]
    monkeypatch.setattr(node, "_nodes", None)
    assert template.render(Context()) == first
    with translation.override("de"):
        assert template.render(Context()) == german


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


def test_attributes_are_written_where_they_have_a_value_and_escaped():
    values = {"name": 'a"b', "value": 0, "rows": None, "id": "", "required": True, "checked": False}
    template = ENGINE.from_string('<input{% attributes attrs "name value rows id required checked form" %}>')
    assert template.render(Context({"attrs": values})) == '<input name="a&quot;b" value="0" required>'
