"""Views of one comparison: as each annotator saw it, along a list, and for reviewers."""

import re

import pytest
from django.urls import reverse

from annotation.choices import ReviewReason, Verdict
from annotation.models import Criterion, Critique, Project, Rating, User
from annotation.services.quality import record_agreement
from annotation.services.reviews import decide_review, open_review
from tests.annotation.comparison.comparison_scene import ClientOf, page_of
from tests.annotation.statistics.statistics_scene import ids_of, item, say

pytestmark = pytest.mark.django_db


def test_the_switch_shows_the_responses_as_one_annotator_saw_them(
    project: Project, alice: User, bob: User, carol: User, client_of: ClientOf
):
    comparison = item(project, ["Two minutes.", "Ten hours.", "No idea."])
    # Alice saw the third response as A, the first as B, the second as C; the second is best to her.
    judgment = say(comparison, alice, [2, 1, 3], order=[2, 0, 1], marks=[(1, 0, 3, "untruthful")])
    say(comparison, bob, [1, 2, 3], marks=[(1, 4, 9, "irrelevant")])
    helpful = Criterion.objects.create(project=project, key="helpful", label="Helpful")
    second = ids_of(comparison)[1]
    Rating.objects.create(judgment=judgment, completion_id=second, criterion=helpful, value=4)
    Critique.objects.create(judgment=judgment, completion_id=second, text="Far too long.")
    client = client_of(carol)
    page = page_of(client, comparison, view=f"a{alice.pk}").context["page"]
    assert [(view.label, view.current) for view in page.views] == [
        ("Everybody", False),
        ("alice", True),
        ("bob", False),
        ("Side by side", False),
    ]
    (column,) = page.columns
    assert [(response.letter, response.number, response.rank) for response in column.responses] == [
        ("A", 3, 3),
        ("B", 1, 2),
        ("C", 2, 1),
    ]
    last = column.responses[2]
    assert [mark.span.quote for mark in last.marks] == ["Ten"]
    assert [(remark.kind, remark.text) for remark in last.remarks] == [
        ("Helpful", "4 of 5"),
        ("Critique", "Far too long."),
    ]
    text = page_of(client, comparison, view=f"a{alice.pk}").content.decode()
    assert '<mark data-category="untruthful">Ten</mark>' in text
    assert '<mark data-category="irrelevant">' not in text


def test_side_by_side_has_a_column_for_each_annotator_in_their_own_letters(
    project: Project, alice: User, bob: User, carol: User, client_of: ClientOf
):
    comparison = item(project)
    say(comparison, alice, [2, 1], order=[1, 0])
    say(comparison, bob, [2, 1], order=[0, 1])
    page = page_of(client_of(carol), comparison, view="side").context["page"]
    assert [
        (
            column.judgment.name,
            column.judgment.preference,
            [(response.letter, response.number) for response in column.responses],
        )
        for column in page.columns
    ] == [
        ("alice", "A > B", [("A", 2), ("B", 1)]),
        ("bob", "B > A", [("A", 1), ("B", 2)]),
    ]


def test_an_unknown_view_shows_everybody_and_nobody_has_no_switch(
    project: Project, alice: User, carol: User, client_of: ClientOf
):
    comparison = item(project)
    page = page_of(client_of(carol), comparison, view="side").context["page"]
    assert (page.view, page.views, page.columns) == ("together", [], [])
    say(comparison, alice, [1, 2])
    # With one annotator nothing stands beside anything.
    page = page_of(client_of(carol), comparison, view="side").context["page"]
    assert page.view == "together"
    assert [view.key for view in page.views] == ["together", f"a{alice.pk}"]


def test_htmx_gets_the_responses_alone(project: Project, alice: User, carol: User, client_of: ClientOf):
    comparison = item(project)
    say(comparison, alice, [1, 2])
    address = reverse("statistics-item", args=[project.slug, comparison.pk])
    text = (
        client_of(carol).get(f"{address}?view=a{alice.pk}", headers={"HX-Request": "true"}).content.decode()
    )
    assert text.lstrip().startswith('<section class="stack" id="responses"')
    assert "<html" not in text


def test_a_retest_has_letters_and_an_entry_of_its_own(
    project: Project, alice: User, carol: User, client_of: ClientOf
):
    comparison = item(project)
    first = say(comparison, alice, [1, 2], order=[0, 1])
    say(comparison, alice, [1, 2], order=[1, 0], again=first)
    page = page_of(client_of(carol), comparison, view=f"a{alice.pk}-2").context["page"]
    assert [view.label for view in page.views] == ["Everybody", "alice", "alice, retest", "Side by side"]
    assert page.columns[0].judgment.preference == "B > A"
    # A retest is no second annotator.
    assert page.agreement == "1 annotation: agreement needs two annotators."


def test_previous_and_next_follow_the_list_that_led_here(
    project: Project, alice: User, bob: User, carol: User, client_of: ClientOf
):
    split, agreed, other = item(project), item(project), item(project)
    for comparison in (split, other):
        say(comparison, alice, [1, 2])
        say(comparison, bob, [2, 1])
    for annotator in (alice, bob):
        say(agreed, annotator, [1, 2])
    record_agreement(comparisons=[split.pk, agreed.pk, other.pk])
    client = client_of(carol)
    listed = client.get(
        reverse("statistics-items", args=[project.slug]), {"show": "disagree"}
    ).content.decode()
    link = re.search(rf'href="(/projects/tea/items/{other.pk}/[^"]*)"', listed).group(1).replace("&amp;", "&")
    answer = client.get(link)
    near = answer.context["way"].neighbours
    assert (near.previous, near.next, near.position, near.total) == (None, split.pk, 1, 2)
    following = (
        re.search(r'rel="next" href="([^"]+)"', answer.content.decode()).group(1).replace("&amp;", "&")
    )
    near = client.get(following).context["way"].neighbours
    assert (near.previous, near.next, near.position, near.total) == (other.pk, None, 2, 2)
    # Without a list: by age, newest first.
    near = page_of(client, agreed).context["way"].neighbours
    assert (near.previous, near.next, near.position) == (other.pk, split.pk, None)
    # What has left the list since has its neighbours by age.
    near = page_of(client, agreed, show="disagree").context["way"].neighbours
    assert (near.previous, near.next, near.position) == (other.pk, split.pk, None)


def test_side_by_side_stays_on_the_way_and_one_annotator_does_not(
    project: Project, alice: User, bob: User, carol: User, client_of: ClientOf
):
    first, second = item(project), item(project)
    for comparison in (first, second):
        for annotator in (alice, bob):
            say(comparison, annotator, [1, 2])
    client = client_of(carol)
    assert page_of(client, second, view="side", show="judged").context["way"].query == "show=judged&view=side"
    assert page_of(client, second, view=f"a{bob.pk}", show="judged").context["way"].query == "show=judged"


def test_a_reviewer_opens_what_waits_for_review_without_names_times_and_training(
    project: Project, alice: User, bob: User, rita: User, carol: User, client_of: ClientOf
):
    comparison = item(project)
    say(comparison, alice, [1, 2], marks=[(1, 0, 3, "untruthful")])
    say(comparison, bob, [2, 1])
    address = reverse("statistics-item", args=[project.slug, comparison.pk])
    client = client_of(rita)
    assert client.get(address).status_code == 403
    review = open_review(comparison=comparison, reason=ReviewReason.DISAGREEMENT)
    answer = client.get(address)
    text = answer.content.decode()
    assert answer.status_code == 200
    assert {thread.shown.name for thread in answer.context["page"].threads} == {"Annotator 1", "Annotator 2"}
    for secret in ("alice", "bob", "opened", "<time", "Used in training", "Provenance", f"view=a{alice.pk}"):
        assert secret not in text, secret
    decide_review(
        review=review,
        reviewer=rita,
        verdict=Verdict.RANKED,
        ranks=dict(zip(ids_of(comparison), [2, 1], strict=True)),
    )
    text = client.get(address).content.decode()
    assert "alice" in text
    assert "2 &gt; 1" in text


def test_a_reviewer_does_not_open_what_they_judged_themselves_nor_what_nobody_sent(
    project: Project, rita: User, alice: User, client_of: ClientOf
):
    comparison, other = item(project), item(project)
    say(comparison, rita, [1, 2])
    open_review(comparison=comparison, reason=ReviewReason.FLAGGED)
    for opened, user in ((comparison, rita), (other, rita), (comparison, alice)):
        address = reverse("statistics-item", args=[project.slug, opened.pk])
        assert client_of(user).get(address).status_code == 403


def test_the_numbers_of_an_open_review_follow_its_own_order(
    project: Project, alice: User, rita: User, carol: User, client_of: ClientOf
):
    """The recorded order may tell which model wrote what."""
    comparison = item(project, [f"Response {number}." for number in range(6)])
    say(comparison, alice, [1, 2, 3, 4, 5, 6])
    review = open_review(comparison=comparison, reason=ReviewReason.RANDOM)
    blind = page_of(client_of(rita), comparison).context["page"]
    shown = client_of(rita).get(reverse("review", args=[project.slug, review.pk])).context["page"]
    assert [response.markup for response in blind.responses] == [
        completion.markup for completion in shown.completions
    ]
    assert list(page_of(client_of(carol), comparison).context["page"].numbers) == ids_of(comparison)
