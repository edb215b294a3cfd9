"""Every address as everybody: who gets in, who is turned away, and that no address is forgotten.

The table is the policy. An address that is not in it fails, and so does a line without an address.
"""

import inspect
import re
from typing import Any

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import URLPattern, reverse

from tests.architecture.address_table import ROLES, TABLE, our_patterns

WHO = re.compile(
    r"\bFor (everyone|members|annotators|reviewers|managers|superusers|administrators|the annotator|who)\b"
)


def test_every_address_is_in_the_table_and_every_line_of_it_is_an_address():
    names = [
        str(pattern.name)
        for pattern in our_patterns()
        if pattern.name in TABLE or not str(pattern.name).startswith("api-")
    ]
    assert sorted(names) == sorted(TABLE)


@pytest.mark.django_db
@pytest.mark.parametrize("name", TABLE)
def test_each_role_gets_what_the_table_says(name: str, parts, everybody):
    method, expected = TABLE[name]
    address = reverse(name, kwargs=parts.get(name, {}))
    responses = {
        role: everybody[role].generic(method, address, content_type="application/x-www-form-urlencoded")
        for role in ROLES
    }
    assert {role: answer.status_code for role, answer in responses.items()} == dict(
        zip(ROLES, expected, strict=True)
    )
    # What the table opens to everybody is opened to them; from all else the way leads to the sign-in page.
    if expected[0] == 302:
        assert responses["anonymous"]["Location"].startswith(reverse("login"))


@pytest.mark.django_db
@pytest.mark.parametrize("name", [name for name, (method, _) in TABLE.items() if method == "POST"])
def test_what_changes_something_is_never_done_by_following_a_link(name: str, parts, everybody):
    address = reverse(name, kwargs=parts.get(name, {}))
    assert everybody["admin"].get(address).status_code in (404, 405)
    assert everybody["alice"].get(address).status_code in (403, 404, 405)


@pytest.mark.django_db
@pytest.mark.parametrize("name", [name for name, (method, _) in TABLE.items() if method == "POST"])
def test_a_form_from_another_site_is_refused(name: str, parts, everybody):
    client = Client(enforce_csrf_checks=True)
    client.cookies = everybody["admin"].cookies
    # Where cookies are not looked at, another site's form comes without a token as anybody's does.
    expected = 401 if name.startswith("v1-") else 403
    assert client.post(reverse(name, kwargs=parts.get(name, {}))).status_code == expected


@pytest.mark.django_db
def test_a_page_that_does_not_exist_looks_like_one_that_is_not_yours(parts, everybody):
    """An outsider who guesses a name learns nothing from the answer."""
    yours = everybody["oscar"].get(reverse("project", kwargs=parts["project"]))
    nobodys = everybody["oscar"].get(reverse("project", kwargs={"slug": "no-such-project"}))
    assert (yours.status_code, nobodys.status_code) == (404, 404)
    # Django masks the same CSRF token anew on every page.
    token = re.compile(rb"[A-Za-z0-9]{64}")
    assert token.sub(b"", yours.content) == token.sub(b"", nobodys.content)


@pytest.mark.parametrize("pattern", list(our_patterns()), ids=lambda pattern: str(pattern.name))
def test_every_view_of_ours_says_who_may_use_it(pattern: URLPattern):
    view = inspect.unwrap(pattern.callback)
    if not view.__module__.startswith(("annotation", "training", "webapp")):
        return
    assert view.__doc__, f"{view.__qualname__} has no docstring"
    assert WHO.search(view.__doc__), f"{view.__qualname__} does not say for whom it is"


# ── the admin ─────────────────────────────────────────────────────────────────────────


def admin_addresses() -> list[str]:
    """The list of every model, and of those that can be added the form."""
    return ["admin:index", "admin:password_change"] + [
        f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist" for model in admin.site._registry
    ]


@pytest.mark.django_db
def test_the_admin_is_for_superusers_alone(parts, everybody):
    for name in admin_addresses():
        statuses = {role: everybody[role].get(reverse(name)).status_code for role in ROLES if role != "admin"}
        assert set(statuses.values()) == {302}, (name, statuses)


# Models of annotation have more rows in tests/annotation/test_admin.py.
@pytest.mark.django_db
@pytest.mark.parametrize(
    "model",
    [model for model in admin.site._registry if model._meta.app_label != "annotation"],
    ids=lambda model: model._meta.label,
)
def test_every_form_of_the_admin_opens(model: Any, parts, everybody):
    site = admin.site.get_model_admin(model)
    prefix = f"admin:{model._meta.app_label}_{model._meta.model_name}"
    adds = everybody["admin"].get(reverse(f"{prefix}_add")).status_code
    assert adds in (200, 403)
    row = site.model._default_manager.first()
    if row is not None:
        assert everybody["admin"].get(reverse(f"{prefix}_change", args=[row.pk])).status_code == 200
    for search in ({}, {"q": "x"}):
        assert everybody["admin"].get(reverse(f"{prefix}_changelist"), search).status_code == 200
