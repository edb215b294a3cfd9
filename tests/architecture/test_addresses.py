"""Every address as everybody: who gets in, who is turned away, and that no address is forgotten.

The table is the policy. An address that is not in it fails, and so does a line without an address.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse

from annotation.choices import ReviewReason
from annotation.models import Project, User, Withholding
from annotation.services.reviews import open_review
from tests import factories
from training import doorbell
from training.recipe import Recipe, default_recipe
from training.services.rounds import open_first_round
from training.services.runs import create_run
from training.services.snapshots import freeze_snapshot

ROLES = ("anonymous", "oscar", "alice", "bob", "carol", "admin")

# What anonymous, Oscar (an outsider), Alice (who labels, and whose assignment it is), Bob (who
# labels too), Carol (a manager) and the superuser get. 302 for anonymous leads to the sign-in page.
EVERYONE = (302, 200, 200, 200, 200, 200)
MEMBERS = (302, 404, 200, 200, 200, 200)
ALICE_ALONE = (302, 404, 200, 404, 404, 404)
MANAGERS = (302, 404, 403, 403, 200, 200)
# Carol did not judge what is reviewed; there is no plain reviewer in the cast.
REVIEWERS = MANAGERS

WHO = re.compile(r"\bFor (everyone|members|annotators|reviewers|managers|the annotator|who)\b")

# name: (method, what each gets)
TABLE: dict[str, tuple[str, tuple[int, ...]]] = {
    "login": ("GET", (200, 302, 302, 302, 302, 302)),
    "logout": ("POST", (302, 302, 302, 302, 302, 302)),
    "language": ("POST", (302, 302, 302, 302, 302, 302)),
    "projects": ("GET", EVERYONE),
    "keys": ("GET", EVERYONE),
    "project": ("GET", MEMBERS),
    "guidelines": ("GET", MEMBERS),
    # An empty request does not say which version was read.
    "guidelines-read": ("POST", (302, 404, 400, 400, 400, 400)),
    "category-colours": ("GET", MEMBERS),
    "label": ("GET", MEMBERS),
    # Nothing follows when the request does not say upon what.
    "label-ahead": ("GET", (302, 404, 204, 204, 204, 204)),
    # With nothing in the form: shown again, with what is missing.
    "submit": ("POST", (302, 404, 422, 404, 404, 404)),
    "skip": ("POST", (302, 404, 422, 404, 404, 404)),
    "flag": ("POST", (302, 404, 422, 404, 404, 404)),
    # An empty request is no draft.
    "draft": ("POST", (302, 404, 400, 404, 404, 404)),
    # The lease of what is submitted cannot be renewed.
    "renew": ("POST", (302, 404, 409, 404, 404, 404)),
    "revise": ("GET", ALICE_ALONE),
    "reviews": ("GET", REVIEWERS),
    "review": ("GET", REVIEWERS),
    # With nothing in the form: shown again, with what is missing.
    "review-decide": ("POST", (302, 404, 403, 403, 422, 422)),
    "statistics": ("GET", MANAGERS),
    "statistics-items": ("GET", MANAGERS),
    "statistics-item": ("GET", MANAGERS),
    "withheld": ("GET", MANAGERS),
    # Neither release nor discard is said: back to the list, with a message.
    "withheld-decide": ("POST", (302, 404, 403, 403, 302, 302)),
    "gold": ("GET", MANAGERS),
    "gold-make": ("POST", (302, 404, 403, 403, 422, 422)),
    "round": ("GET", MANAGERS),
    "round-progress": ("GET", MANAGERS),
    "round-start": ("GET", MANAGERS),
    # Nothing goes on or failed: back to the round's page, with a message.
    "round-cancel": ("POST", (302, 404, 403, 403, 302, 302)),
    "round-again": ("POST", (302, 404, 403, 403, 302, 302)),
    "round-reopen": ("POST", (302, 404, 403, 403, 302, 302)),
    "run": ("GET", MANAGERS),
    "checkpoints": ("GET", MANAGERS),
    "checkpoint": ("GET", MANAGERS),
    "snapshot": ("GET", MANAGERS),
    "completion": ("GET", MANAGERS),
    "compare": ("GET", MANAGERS),
    # The form again, with what is missing; htmx swaps nothing in for a 4xx.
    "compare-answer": ("POST", (302, 404, 403, 403, 200, 200)),
}


def our_patterns() -> Iterator[URLPattern]:
    """Every address but those of the admin, whose own table is below."""

    def walk(patterns: list[URLPattern | URLResolver]) -> Iterator[URLPattern]:
        for pattern in patterns:
            if isinstance(pattern, URLPattern):
                yield pattern
            elif pattern.namespace != "admin":
                yield from walk(pattern.url_patterns)

    return walk(get_resolver().url_patterns)


@pytest.fixture
def everybody(
    project: Project, oscar: User, alice: User, bob: User, carol: User, admin: User
) -> Mapping[str, Client]:
    """A browser for each role."""
    clients = {"anonymous": Client()}
    for user in (oscar, alice, bob, carol, admin):
        clients[user.username] = Client()
        clients[user.username].force_login(user)
    return clients


@pytest.fixture
def parts(project: Project, alice: User, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """A round in labelling, judged by Alice, with a snapshot and a run: the parts of every address."""
    monkeypatch.setattr(doorbell, "ring", lambda *_: None)
    round_ = open_first_round(project=project)
    prompt = factories.make_prompt(project, "How long should tea steep?", split="train")
    comparison = factories.make_comparison(project, prompt=prompt)
    judgment = factories.make_judgment(comparison, alice)
    factories.make_comparison(project, prompt=factories.make_prompt(project, "And coffee?", split="train"))
    snapshot = freeze_snapshot(project=project, rounds=[1])
    run = create_run(
        name="reward-1",
        snapshot=snapshot,
        settings_of_method=Recipe.from_json(default_recipe()).reward,
        base_model=round_.policy.base_model,
        parent=None,
        seed=1,
    )
    in_project = {"slug": project.slug}
    in_assignment = {**in_project, "pk": judgment.assignment_id}
    in_round = {**in_project, "number": 1}
    withheld = Withholding.objects.create(
        comparison=comparison, completion=comparison.completions.all()[0], start=0, end=1, quote="T"
    )
    in_review = {**in_project, "pk": open_review(comparison=comparison, reason=ReviewReason.FLAGGED).pk}
    completion = prompt.completions.first()
    assert completion
    return {
        **dict.fromkeys(("project", "guidelines", "category-colours", "label", "label-ahead"), in_project),
        **dict.fromkeys(("submit", "draft", "skip", "flag", "renew", "revise"), in_assignment),
        "guidelines-read": in_project,
        **dict.fromkeys(("reviews", "withheld", "gold", "gold-make"), in_project),
        "withheld-decide": {**in_project, "pk": withheld.pk},
        **dict.fromkeys(("review", "review-decide"), in_review),
        **dict.fromkeys(("statistics", "statistics-items"), in_project),
        "statistics-item": {**in_project, "pk": comparison.pk},
        **{name: in_round for name in TABLE if name == "round" or name.startswith("round-")},
        "run": {"pk": run.pk},
        "checkpoint": {"name": round_.policy.name},
        "snapshot": {"digest": snapshot.digest},
        "completion": {"pk": completion.pk},
    }


def test_every_address_is_in_the_table_and_every_line_of_it_is_an_address():
    names = [str(pattern.name) for pattern in our_patterns()]
    assert sorted(names) == sorted(TABLE)


@pytest.mark.django_db
@pytest.mark.parametrize("name", TABLE)
def test_each_role_gets_what_the_table_says(name: str, parts, everybody):
    method, expected = TABLE[name]
    address = reverse(name, kwargs=parts.get(name, {}))
    found = {
        role: everybody[role].generic(method, address, content_type="application/x-www-form-urlencoded")
        for role in ROLES
    }
    assert {role: answer.status_code for role, answer in found.items()} == dict(
        zip(ROLES, expected, strict=True)
    )
    if name not in ("login", "logout"):
        assert found["anonymous"]["Location"].startswith(reverse("login"))


@pytest.mark.django_db
@pytest.mark.parametrize("name", [name for name, (method, _) in TABLE.items() if method == "POST"])
def test_what_changes_something_is_never_done_by_following_a_link(name: str, parts, everybody):
    address = reverse(name, kwargs=parts.get(name, {}))
    assert everybody["admin"].get(address).status_code in (404, 405)
    assert everybody["alice"].get(address).status_code in (403, 404, 405)


@pytest.mark.django_db
@pytest.mark.parametrize("name", [name for name, (method, _) in TABLE.items() if method == "POST"])
def test_a_form_from_another_site_is_refused(name: str, parts, admin: User):
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin)
    assert client.post(reverse(name, kwargs=parts.get(name, {}))).status_code == 403


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
@pytest.mark.parametrize("name", admin_addresses())
def test_the_admin_is_for_superusers_alone(name: str, parts, everybody):
    statuses = {role: client.get(reverse(name)).status_code for role, client in everybody.items()}
    assert statuses == {**dict.fromkeys(ROLES, 302), "admin": 200}


@pytest.mark.django_db
@pytest.mark.parametrize("model", list(admin.site._registry), ids=lambda model: model._meta.label)
def test_every_form_of_the_admin_opens(model: Any, parts, everybody):
    site = admin.site.get_model_admin(model)
    prefix = f"admin:{model._meta.app_label}_{model._meta.model_name}"
    adds = everybody["admin"].get(reverse(f"{prefix}_add")).status_code
    assert adds in (200, 403)
    row = site.model._default_manager.first()
    if row is not None:
        assert everybody["admin"].get(reverse(f"{prefix}_change", args=[row.pk])).status_code == 200
        assert everybody["admin"].get(reverse(f"{prefix}_history", args=[row.pk])).status_code == 200
    found = everybody["admin"].get(reverse(f"{prefix}_changelist"), {"q": "x"})
    assert found.status_code == 200
