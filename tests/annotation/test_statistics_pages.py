"""The manager's pages: who sees them, what stands on them, and what they cost."""

import json
import re
import uuid
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.core.cache import cache
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from annotation.choices import Purpose, Shown, Verdict
from annotation.models import Comparison, ItemFlag, Judgment, Project, User
from tests import factories
from tests.annotation.statistics_scene import busy_project, item, say

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


@pytest.mark.parametrize("page", ["statistics", "statistics-items"])
def test_managers_alone_see_them(
    page: str, project: Project, alice: User, carol: User, oscar: User, client_of: ClientOf
):
    address = reverse(page, args=[project.slug])
    statuses = [client_of(user).get(address).status_code for user in (oscar, alice, carol)]
    assert statuses == [404, 403, 200]


def test_a_comparison_is_not_found_through_another_project(
    project: Project, carol: User, client_of: ClientOf
):
    comparison = item(project)
    other = factories.make_project(slug="coffee", managers=[carol])
    client = client_of(carol)
    assert client.get(reverse("statistics-item", args=[project.slug, comparison.pk])).status_code == 200
    assert client.get(reverse("statistics-item", args=[other.slug, comparison.pk])).status_code == 404


def test_a_project_without_judgments_says_so(project: Project, carol: User, client_of: ClientOf):
    text = page_of(client_of(carol), project)
    assert "Nobody has judged anything" in text
    assert "nan" not in text.lower().split()


def test_no_page_shows_not_a_number(project: Project, alice: User, carol: User, client_of: ClientOf):
    """One judgment: almost nothing can be told, and the page tells why."""
    say(item(project), alice, [1, 2])
    text = re.sub(r"<[^>]+>", " ", page_of(client_of(carol), project))
    assert "No comparison has two annotators yet" in text
    assert not re.search(r"\b(nan|inf|None)\b", text)


def test_the_page_names_each_statistic_and_each_annotator(busy: Project, carol: User, client_of: ClientOf):
    text = page_of(client_of(carol), busy)
    for name in ("Fleiss’ κ on pairs", "Kendall’s τ-b", "αᵤ", "Gold items answered right", "Dora Lange"):
        assert name in text
    assert "Cohen’s κ on pairs" not in text
    assert text.count('class="interval"') > 15


def test_with_two_annotators_kappa_is_cohens(
    busy: Project, alice: User, bob: User, carol: User, client_of: ClientOf
):
    text = page_of(client_of(carol), busy, annotator=alice.pk, other=bob.pk)
    assert "Cohen’s κ on pairs" in text
    assert "Fleiss’ κ on pairs" not in text


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
    busy: Project, alice: User, carol: User, client_of: ClientOf
):
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
    with django_assert_max_num_queries(12):
        client.get(address)


@pytest.mark.parametrize("shown", Shown.values)
def test_the_list_of_comparisons_costs_at_most_twelve_queries(
    shown: str, busy: Project, carol: User, client_of: ClientOf, django_assert_max_num_queries
):
    client = client_of(carol)
    with django_assert_max_num_queries(12):
        answer = client.get(reverse("statistics-items", args=[busy.slug]), {"show": shown})
    if shown not in (Shown.CIRCLES,):
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


def test_a_comparison_shows_everything_that_was_said_of_it(
    project: Project, alice: User, bob: User, carol: User, client_of: ClientOf
):
    comparison = item(project, ["Two **minutes**.", "Ten hours.", "<b>No</b> idea."])
    said = say(
        comparison,
        alice,
        [2, 1, 2],
        order=[2, 0, 1],
        marks=[(1, 0, 3, "untruthful")],
        comment="The second is clear.",
        active_seconds=75,
    )
    say(comparison, bob, [])
    ItemFlag.objects.create(assignment=said.assignment, reason="Odd question", details="It has no end.")
    text = (
        client_of(carol).get(reverse("statistics-item", args=[project.slug, comparison.pk])).content.decode()
    )
    for expected in (
        "minutes</span></strong>",
        "&lt;b&gt;",
        # Second best, the others tie. Alice saw the third as A, the first as B, the second as C.
        "C &gt; A = B",
        "Letters as alice saw them: A is response 3, B is response 1, C is response 2.",
        "<q>Ten</q>",
        "Untruthful",
        "The second is clear.",
        "1 min 15 s",
        "cannot judge",
        "Odd question",
        "It has no end.",
        "alice",
        "bob",
    ):
        assert expected in text, expected
    # A manager may label, too: the page gives no checkpoint away.
    assert "starter" not in text


def test_the_marks_of_everyone_stand_in_the_text_and_below_it_with_their_names(
    project: Project, alice: User, bob: User, carol: User, client_of: ClientOf
):
    comparison = item(project, ["Two minutes.", "Ten hours."])
    say(comparison, alice, [1, 2], marks=[(1, 0, 3, "untruthful")])
    first = say(comparison, bob, [1, 2], marks=[(1, 4, 9, "irrelevant")])
    text = (
        client_of(carol).get(reverse("statistics-item", args=[project.slug, comparison.pk])).content.decode()
    )
    assert '<mark data-category="untruthful">Ten</mark>' in text
    assert '<mark data-category="irrelevant">hours</mark>' in text
    below = re.findall(
        r'<span class="number">(\d)</span>.*?<q>(\w+)</q> <span class="muted">(\w+)</span>', text
    )
    assert below == [("1", "Ten", "alice"), ("2", "hours", "bob")]
    # A judgment that was replaced tells nothing of the text any more.
    Judgment.objects.create(
        assignment=first.assignment,
        comparison=comparison,
        annotator=bob,
        verdict=Verdict.BOTH_BAD,
        idempotency_key=uuid.uuid4(),
        supersedes=first,
    )
    text = (
        client_of(carol).get(reverse("statistics-item", args=[project.slug, comparison.pk])).content.decode()
    )
    assert '<mark data-category="untruthful">Ten</mark>' in text
    assert '<mark data-category="irrelevant">' not in text


def test_each_judgment_is_shown_in_the_letters_that_its_annotator_saw(
    project: Project, alice: User, bob: User, carol: User, client_of: ClientOf
):
    comparison = item(project, ["Two minutes.", "Ten hours."])
    # Both prefer the second response. Alice saw it as A, Bob as B, and their comments say so.
    say(comparison, alice, [2, 1], order=[1, 0], marks=[(0, 0, 3, "untruthful")], comment="A is right.")
    say(comparison, bob, [2, 1], order=[0, 1], comment="B is right.")
    page = client_of(carol).get(reverse("statistics-item", args=[project.slug, comparison.pk]))
    said_alice, said_bob = page.context["item"].said
    assert (said_alice.verdict, said_bob.verdict) == ("A > B", "B > A")
    assert [(one.about, one.quote) for one in said_alice.remarks if one.quote] == [("B", "Two")]
    first, second = page.context["item"].answers
    assert [(first.number, first.seen_as), (second.number, second.seen_as)] == [
        (1, [("A", "bob"), ("B", "alice")]),
        (2, [("A", "alice"), ("B", "bob")]),
    ]
    text = page.content.decode()
    assert "Response 2" in text
    assert "Letters as alice saw them: A is response 2, B is response 1." in text
    assert "Letters as bob saw them: A is response 1, B is response 2." in text


def test_an_imported_judgment_without_a_displayed_order_counts_letters_as_recorded(
    project: Project, alice: User, carol: User, client_of: ClientOf
):
    comparison = item(project, ["Two minutes.", "Ten hours."])
    said = say(comparison, alice, [2, 1])
    said.assignment.display_order = []
    said.assignment.save()
    page = client_of(carol).get(reverse("statistics-item", args=[project.slug, comparison.pk]))
    assert page.context["item"].said[0].verdict == "B > A"


def test_a_truncated_response_says_so_on_the_page_of_its_comparison(
    project: Project, carol: User, client_of: ClientOf
):
    prompt = factories.make_prompt(project)
    completions = factories.make_completions(prompt, ["Two minutes.", "Ten"], truncated=[1])
    comparison = item(project, prompt=prompt, completions=completions)
    page = client_of(carol).get(reverse("statistics-item", args=[project.slug, comparison.pk]))
    assert [answer.is_truncated for answer in page.context["item"].answers] == [False, True]
    assert page.content.decode().count("Truncated at max tokens") == 1


def test_spans_of_one_annotator_are_not_denied(
    project: Project, alice: User, carol: User, client_of: ClientOf
):
    say(item(project, ["Two minutes.", "Ten hours."]), alice, [2, 1], marks=[(0, 0, 3, "untruthful")])
    text = client_of(carol).get(reverse("statistics", args=[project.slug])).content.decode()
    assert "No comparison has two annotators yet" in text
    assert "No spans" not in text
    assert "Nobody marked" not in text


def test_a_gold_item_shows_what_is_known(project: Project, carol: User, client_of: ClientOf):
    gold = item(project, purpose=Purpose.GOLD, known=[2, 1])
    text = client_of(carol).get(reverse("statistics-item", args=[project.slug, gold.pk])).content.decode()
    assert "Known answer" in text
    assert "2 &gt; 1" in text


def test_a_comparison_with_many_judgments_costs_as_many_queries_as_one_with_few(
    project: Project, carol: User, client_of: ClientOf, django_assert_max_num_queries
):
    comparison = item(project)
    for number in range(8):
        say(comparison, factories.make_user(f"person{number}"), [1, 2], marks=[(0, 0, 2, "untruthful")])
    client = client_of(carol)
    # Session, person, project, membership, comparison, candidates, judgments and six kinds of what belongs
    # to them with two kinds of categories, flags, skips.
    with django_assert_max_num_queries(18):
        client.get(reverse("statistics-item", args=[project.slug, comparison.pk]))


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
    told = json.loads(out.getvalue())
    of_round = Comparison.objects.filter(project=busy, round_number=2, judgments__isnull=False).distinct()
    assert told["comparisons"] == of_round.count()
    assert told["selection"]["round_number"] == 2
    assert {"key", "estimate", "show", "criterion"} == set(told["agreement"][0])
