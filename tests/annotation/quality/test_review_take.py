"""A reviewer takes over single parts of votes into the form of an open review."""

import json
import re
from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from annotation.choices import ReviewReason, SpanRelation, Verdict
from annotation.models import Category, Criterion, Project, Rating, Review, SpanFlag, User
from annotation.record.judgment import SpanLink, SpanPart
from annotation.selectors.comparison import completion_ids_by_name
from annotation.selectors.reviews import ReviewPage, only_parts, part_keys
from annotation.services.reviews import open_review
from tests import factories
from tests.records import judgment_record

pytestmark = pytest.mark.django_db
ClientOf = Callable[[User], Client]


@pytest.fixture
def review(project: Project, alice: User, bob: User) -> Review:
    """Alice prefers the first, rates it 4 and marks "Two"; Bob the second, rates the first 2."""
    project.overlap = 2
    project.save()
    wrong = Category.objects.create(project=project, key="wrong", label="Wrong")
    clear = Criterion.objects.create(project=project, key="clear", label="Clear", scale="five")
    comparison = factories.make_comparison(project)
    first = comparison.candidates.order_by("index")[0].completion
    hers = factories.make_judgment(comparison, alice, (1, 2), strength=4)
    his = factories.make_judgment(comparison, bob, (2, 1), strength=1)
    for judgment, value in ((hers, 4), (his, 2)):
        Rating.objects.create(judgment=judgment, completion=first, criterion=clear, value=value)
    SpanFlag.objects.create(
        judgment=hers, completion=first, category=wrong, start=0, end=3, quote="Two", note="a note"
    )
    return open_review(comparison=comparison, reason=ReviewReason.REQUESTED)


def part_name(review: Review, verdict: str, kind: str) -> str:
    """The name of a part of the vote with this first rank and this kind."""
    page = ReviewPage(review)
    for vote, record in zip(page.votes, page.records, strict=True):
        if vote.verdict.startswith(verdict):
            kinds = [key[0] for key in part_keys(record)]
            return f"{vote.name}.{kinds.index(kind)}"
    raise AssertionError(verdict)


@pytest.fixture
def names(review: Review) -> tuple[str, str, str, str]:
    """Names of the first and second response in the form, and the verdict of Alice's and of Bob's vote."""
    by_pk = {pk: name for name, pk in completion_ids_by_name(review).items()}
    ids = list(review.comparison.candidates.order_by("index").values_list("completion_id", flat=True))
    letter = dict(zip(by_pk, "AB", strict=True))
    first, second = (by_pk[pk] for pk in ids)
    return first, second, letter[ids[0]], letter[ids[1]]


def take(client: Client, review: Review, part: str, **fields: str):
    address = reverse("review-take", args=[review.comparison.project.slug, review.pk])
    return client.post(address, {"take": part, **fields})


def spans_shown(markup: str) -> list[dict[str, object]]:
    (value,) = re.findall(r'name="span_flags" value="([^"]*)"', markup)
    spans: list[dict[str, object]] = json.loads(value.replace("&quot;", '"'))
    return spans


def checked(markup: str) -> list[str]:
    inputs = [tag for tag in re.findall(r"<input[^>]*>", markup) if " checked" in tag]
    attributes = [dict(re.findall(r'([a-z]+)="([^"]*)"', tag)) for tag in inputs]
    return [f"{values['name']}={values['value']}" for values in attributes]


def test_a_span_comes_into_the_form_and_everything_entered_stays(
    review: Review, names: tuple[str, str, str, str], rita: User, client_of: ClientOf
):
    first, second, hers, _his = names
    answer = take(
        client_of(rita),
        review,
        part_name(review, hers, "span"),
        choice=f"win:{second}:2",
        comment="what I wrote",
        **{f"rating-{first}-clear": "5"},
    )
    markup = answer.content.decode()
    assert answer.status_code == 200
    assert [
        (span["candidate"], span["start"], span["end"], span["note"]) for span in spans_shown(markup)
    ] == [(first, 0, 3, "a note")]
    assert sorted(checked(markup)) == sorted([f"choice=win:{second}:2", f"rating-{first}-clear=5"])
    assert "what I wrote" in markup
    review.refresh_from_db()
    assert review.decided_at is None


def test_the_same_span_is_not_taken_twice(
    review: Review, names: tuple[str, str, str, str], rita: User, client_of: ClientOf
):
    part = part_name(review, names[2], "span")
    once = spans_shown(take(client_of(rita), review, part).content.decode())
    twice = spans_shown(take(client_of(rita), review, part, span_flags=json.dumps(once)).content.decode())
    assert twice == once


def test_parts_of_two_votes_come_together(
    review: Review, names: tuple[str, str, str, str], rita: User, client_of: ClientOf
):
    first, _second, hers, his = names
    client = client_of(rita)
    preference = checked(take(client, review, part_name(review, hers, "preference")).content.decode())
    assert preference == [f"choice=win:{first}:4"]
    both = take(client, review, part_name(review, his, "rating"), choice=f"win:{first}:4").content.decode()
    assert sorted(checked(both)) == sorted([f"choice=win:{first}:4", f"rating-{first}-clear=2"])


@pytest.mark.parametrize("part", ["", "x", "x.0", "{vote}", "{vote}.99", "{vote}.-1", "{vote}.²"])
def test_a_part_that_no_vote_has_changes_nothing_that_was_entered(
    review: Review, rita: User, client_of: ClientOf, part: str
):
    vote = ReviewPage(review).vote_names[0]
    answer = take(client_of(rita), review, part.format(vote=vote), comment="what I wrote")
    assert answer.status_code == 422
    assert "what I wrote" in answer.content.decode()


def test_a_script_field_that_is_no_json_is_no_error(
    review: Review, names: tuple[str, str, str, str], rita: User, client_of: ClientOf
):
    part = part_name(review, names[2], "span")
    for broken in ("{", "7", "[" * 100_000, "[7]"):
        answer = take(client_of(rita), review, part, span_flags=broken, rewrites=broken)
        assert answer.status_code == 200


def test_who_voted_takes_nothing(review: Review, alice: User, client_of: ClientOf):
    assert take(client_of(alice), review, "x.0").status_code == 403


def test_only_parts_that_differ_have_buttons_and_their_keys_count_on_over_the_votes(
    review: Review, rita: User, client_of: ClientOf
):
    address = reverse("review", args=[review.comparison.project.slug, review.pk])
    markup = client_of(rita).get(address).content.decode()
    # Two preferences, two ratings and one span.
    assert re.findall(r'data-part="(\d)"', markup) == ["1", "2", "3", "4", "5"]


def test_a_relation_follows_its_span_when_spans_before_it_fall_away():
    def span(start: int, *links: int) -> SpanPart:
        relations = tuple(SpanLink(kind=SpanRelation.CAUSE, to=to) for to in links)
        return SpanPart(
            completion="1", category="wrong", start=start, end=start + 1, quote="x", relations=relations
        )

    record = judgment_record(verdict=Verdict.NOT_ASKED, ranks={}, spans=(span(0), span(1, 0, 2), span(2)))
    second, third = (key for key in part_keys(record) if key[0] == "span" and key[3] > 0)
    kept = only_parts(record, {second, third}).spans
    assert [(part.start, [link.to for link in part.relations]) for part in kept] == [(1, [1]), (2, [])]
