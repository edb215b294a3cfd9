"""The manager's pages: who sees them, what stands on them, and what they cost."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from io import StringIO
from typing import Any

import pytest
from django.core.cache import cache
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from annotation.agreement.records import Selection
from annotation.choices import Shown, TaskName
from annotation.models import Comparison, Project, User
from annotation.statistics.cached import report_of
from annotation.tasks import compute_report
from tests import factories
from tests.annotation.statistics.statistics_scene import busy_project, item, say
from tests.api.scene import Asker

ClientOf = Callable[[User], Client]


@pytest.fixture(autouse=True)
def empty_cache() -> None:
    """No test reads what another has computed."""
    cache.clear()


@pytest.fixture
def busy(project: Project, alice: User, bob: User) -> Project:
    busy_project(project, [alice, bob, factories.make_user("dora", first_name="Dora", last_name="Lange")])
    return project


def page_of(client: Client, project: Project, **query: Any) -> str:
    answer = client.get(reverse("statistics", args=[project.slug]), query)
    assert answer.status_code == 200
    return answer.content.decode()


def test_a_project_without_judgments_says_so(project: Project, carol: User, client_of: ClientOf):
    text = page_of(client_of(carol), project)
    assert "No annotations in this part" in text
    assert "nan" not in text.lower().split()


def test_no_page_shows_not_a_number(project: Project, alice: User, carol: User, client_of: ClientOf):
    """One judgment: almost nothing can be computed, and the page says why."""
    say(item(project), alice, [1, 2])
    text = re.sub(r"<[^>]+>", " ", page_of(client_of(carol), project))
    assert "No comparison has two annotators yet" in text
    assert not re.search(r"\b(nan|inf|None)\b", text)


def test_an_old_link_with_unknown_values_selects_everything(busy: Project, carol: User, client_of: ClientOf):
    client = client_of(carol)
    plain = client.get(reverse("statistics", args=[busy.slug])).context["report"]
    odd = client.get(reverse("statistics", args=[busy.slug]), {"round": "x", "annotator": "99999"})
    assert odd.context["report"].judgments == plain.judgments


def test_every_number_leads_to_the_comparisons_behind_it(busy: Project, carol: User, client_of: ClientOf):
    client = client_of(carol)
    text = page_of(client, busy)
    links = set(re.findall(r'href="(/projects/tea/statistics/items/\?[^"]+)"', text))
    assert len(links) > 10
    for link in links:
        answer = client.get(link.replace("&amp;", "&"))
        assert answer.status_code == 200
        shown = dict(part.split("=") for part in link.partition("?")[2].replace("&amp;", "&").split("&"))
        assert answer.context["form"].shown == shown["show"]


def test_the_report_is_computed_once_until_somebody_judges(
    busy: Project, alice: User, carol: User, client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
):
    # One that took long on a busy machine would be shown on, whoever judges.
    monkeypatch.setattr("annotation.statistics.cached.QUICK_SECONDS", 60.0)
    client = client_of(carol)
    address = reverse("statistics", args=[busy.slug])
    first = client.get(address).context["report"]
    again = client.get(address).context["report"]
    assert again.computed_at == first.computed_at
    say(item(busy), alice, [1, 2])
    later = client.get(address).context["report"]
    assert later.computed_at > first.computed_at
    assert later.judgments == first.judgments + 1


def test_a_report_that_is_there_costs_few_queries(
    busy: Project, carol: User, client_of: ClientOf, django_assert_max_num_queries
):
    client = client_of(carol)
    address = reverse("statistics", args=[busy.slug])
    client.get(address)
    with django_assert_max_num_queries(13):
        client.get(address)


def test_the_list_of_comparisons_costs_few_queries(
    busy: Project, carol: User, client_of: ClientOf, django_assert_max_num_queries
):
    client = client_of(carol)
    for shown in Shown.values:
        with django_assert_max_num_queries(13):
            answer = client.get(reverse("statistics-items", args=[busy.slug]), {"show": shown})
        if shown != Shown.CIRCLES:
            assert answer.context["comparisons"], f"nothing in the scene is {shown}"


def test_a_long_list_comes_in_pages_that_keep_what_was_chosen(
    project: Project, alice: User, carol: User, client_of: ClientOf
):
    for _ in range(53):
        say(item(project), alice, [1, 2])
    client = client_of(carol)
    address = reverse("statistics-items", args=[project.slug])
    first = client.get(address, {"show": "first-won", "annotator": str(alice.pk)})
    assert len(first.context["comparisons"]) == 50
    link = re.search(r'rel="next" href="([^"]+)"', first.content.decode()).group(1).replace("&amp;", "&")
    second = client.get(address + link)
    assert len(second.context["comparisons"]) == 3
    assert second.context["form"].shown == "first-won"
    assert f"annotator={alice.pk}" in link


def test_the_command_prints_what_the_page_shows(busy: Project, carol: User, client_of: ClientOf):
    out = StringIO()
    call_command("agreement", busy.slug, stdout=out)
    text = page_of(client_of(carol), busy)
    percent = re.search(r"Percent agreement on pairs\s+([\d.]+)", out.getvalue()).group(1)
    assert f"{percent}\N{NO-BREAK SPACE}%" in text
    assert "Dora Lange" in out.getvalue()


def test_the_command_gives_json_of_one_round(busy: Project):
    out = StringIO()
    call_command("agreement", busy.slug, round=2, json=True, stdout=out)
    report = json.loads(out.getvalue())
    of_round = Comparison.objects.filter(project=busy, round_number=2, judgments__isnull=False).distinct()
    assert report["comparisons"] == of_round.count()
    assert report["selection"]["round_number"] == 2
    assert {"key", "estimate", "show", "criterion"} == set(report["agreement"][0])


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three judgments are many."""
    monkeypatch.setattr("annotation.statistics.cached.LARGE", 2)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """The reports that a worker is asked to compute; calling one does it."""
    computations: list[Callable[[], None]] = []

    def send(task: str, *arguments: Any) -> bool:
        assert task == TaskName.COMPUTE_REPORT
        # A message carries nothing but what JSON does.
        computations.append(partial(compute_report, *json.loads(json.dumps(arguments))))
        return True

    monkeypatch.setattr("annotation.services.quality.send", send)
    return computations


@pytest.mark.parametrize("page", ["statistics", "annotators"])
def test_nobody_waits_for_the_report_of_a_large_project(
    page: str,
    large: None,
    worker: list[Callable[[], None]],
    project: Project,
    alice: User,
    carol: User,
    client_of: ClientOf,
):
    client = client_of(carol)
    address = reverse(page, args=[project.slug])
    for _ in range(2):
        say(item(project), alice, [1, 2])
    # Small still: computed at once.
    assert "Computing figures" not in client.get(address).content.decode()
    cache.clear()
    say(item(project), alice, [1, 2])
    text = client.get(address).content.decode()
    assert "Computing figures of many annotations…" in text
    assert f'hx-get="{address}"' in text
    # The page asks for itself until a worker has computed the figures, once: then everybody has them.
    fragment = client.get(address, headers={"HX-Request": "true"}).content.decode()
    assert "Computing figures" in fragment
    [compute] = worker
    compute()
    fragment = client.get(address, headers={"HX-Request": "true"}).content.decode()
    assert "alice" in fragment
    assert fragment.lstrip().startswith('<div class="page')
    assert "Computing figures" not in client.get(address).content.decode()
    # Older figures are shown, with their time, while a worker computes newer ones.
    say(item(project), alice, [1, 2])
    assert "Computing figures" not in client.get(address).content.decode()
    assert len(worker) == 2


def test_figures_that_no_worker_was_asked_for_are_asked_for_again(
    large: None,
    project: Project,
    alice: User,
    carol: User,
    client_of: ClientOf,
    monkeypatch: pytest.MonkeyPatch,
):
    for _ in range(3):
        say(item(project), alice, [1, 2])
    tasks: list[str] = []
    # The broker takes no message.
    monkeypatch.setattr("annotation.services.quality.send", lambda task, *_: tasks.append(task))
    for _ in range(2):
        assert (
            "Computing" in client_of(carol).get(reverse("statistics", args=[project.slug])).content.decode()
        )
    assert len(tasks) == 2


@pytest.mark.django_db
def test_the_report_of_a_project_that_is_gone_is_not_computed():
    compute_report(123456, None, None, None, None)


def test_the_comparisons_behind_a_figure_of_a_large_project_come_after_the_page(
    large: None, project: Project, alice: User, carol: User, client_of: ClientOf
):
    client = client_of(carol)
    address = reverse("statistics-items", args=[project.slug])
    for _ in range(3):
        say(item(project), alice, [1, 2])
    assert f'hx-get="{address}"' in client.get(address).content.decode()
    fragment = client.get(address, headers={"HX-Request": "true"}).content.decode()
    assert "alice" in fragment
    assert "Computing figures" not in client.get(address).content.decode()


def test_the_comparisons_behind_a_figure_of_a_large_project_are_listed_once_and_looked_through_in_order(
    large: None, project: Project, alice: User, carol: User, client_of: ClientOf
):
    first, second, third = (item(project) for _ in range(3))
    for comparison in (first, third, second):
        say(comparison, alice, [1, 2])
    client = client_of(carol)
    address = reverse("statistics-items", args=[project.slug])
    listed = client.get(address, headers={"HX-Request": "true"}).content.decode()
    # Shown again whatever was submitted meanwhile.
    fourth = item(project)
    say(fourth, alice, [1, 2])
    shown = client.get(address).content.decode()
    assert shown.count("/items/") == listed.count("/items/")
    page = client.get(reverse("statistics-item", args=[project.slug, second.pk]), {"show": "judged"})
    assert f"/items/{first.pk}/?show=judged" in page.content.decode()
    assert f"/items/{third.pk}/?show=judged" in page.content.decode()
    last = client.get(reverse("statistics-item", args=[project.slug, third.pk]), {"show": "judged"})
    assert f"/items/{fourth.pk}/" not in last.content.decode()


def test_the_api_gives_a_large_projects_last_figures_while_it_computes_newer_ones(
    large: None, worker: list[Callable[[], None]], project: Project, alice: User, carol: User
):
    for _ in range(3):
        say(item(project), alice, [1, 2])
    asker, address = Asker(carol), f"/projects/{project.slug}/statistics/"
    for _ in range(2):
        answer = asker.get(address)
        assert (answer.status_code, answer.json()) == (202, {"computing": True})
        assert answer["Retry-After"] == "10"
    # Once, however often one asks.
    (compute,) = worker
    compute()
    assert asker.get(address).json()["judgments"] == 3
    say(item(project), alice, [1, 2])
    assert asker.get(address).json()["judgments"] == 3
    _, compute = worker
    compute()
    assert asker.get(address).json()["judgments"] == 4
    assert len(worker) == 2


def test_without_javascript_a_link_waits(
    large: None, project: Project, alice: User, carol: User, client_of: ClientOf
):
    for _ in range(3):
        say(item(project), alice, [1, 2])
    client = client_of(carol)
    address = reverse("statistics", args=[project.slug])
    link = re.search(r'href="(\?[^"]*compute=now)"', client.get(address, {"round": "1"}).content.decode())
    waited = client.get(address + link.group(1).replace("&amp;", "&"))
    assert waited.context["report"].judgments == 3
    assert waited.context["report"].selection.round_number == 1


def test_a_report_that_took_long_is_shown_for_a_while_after_new_judgments(project: Project, alice: User):
    say(item(project), alice, [1, 2])
    # Three seconds are long: shown for a hundred times that, 300 seconds.
    slow = replace(report_of(project, Selection()), seconds=3.0)
    key = f"statistics:report:6:{project.pk}:{Selection().key}"
    cache.set(key, (cache.get(key)[0], slow))
    say(item(project), alice, [1, 2])
    assert report_of(project, Selection()).judgments == 1
    cache.set(key, (cache.get(key)[0], replace(slow, computed_at=slow.computed_at - timedelta(seconds=301))))
    assert report_of(project, Selection()).judgments == 2
