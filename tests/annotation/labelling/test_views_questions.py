"""Every question by request and response, as a page without JavaScript sends it."""

import json
import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from annotation.choices import AssignmentState, RatingScale, ReviewReason, Verdict
from annotation.models import Assignment, Criterion, ItemFlag, Judgment, Membership, Project, Review, User
from annotation.services.assignments import assign_next, tokens_of
from annotation.services.judgments.checks import EvidencePointer, MissingInfoInput
from annotation.services.projects.projects import publish_guideline
from tests import factories

ClientOf = Callable[[User], Client]
HTMX = {"HX-Request": "true"}
CRLF = "First line.\r\nSecond  line.\n\nThird line."


@pytest.fixture
def browser(alice: User, client_of: ClientOf) -> Client:
    """Where Alice is signed in."""
    return client_of(alice)


@pytest.fixture
def asks(project: Project) -> Project:
    """The project asks everything, on two scales."""
    Project.objects.filter(pk=project.pk).update(
        ask_correction=True, ask_critique=True, ask_demonstration=True
    )
    for place, (key, scale) in enumerate([("helpful", RatingScale.FIVE), ("tone", RatingScale.THUMBS)]):
        Criterion.objects.create(project=project, key=key, label=key.title(), scale=scale, position=place)
    return project


@pytest.fixture
def held(asks: Project, alice: User) -> Assignment:
    """A pair in Alice's hands, one answer of it with line breaks of both kinds."""
    prompt = factories.make_prompt(asks, context=[("Tea", ["Hot.", "Wet."]), ("Water", ["Cold."])])
    factories.make_comparison(asks, [CRLF, "No."], prompt=prompt)
    assignment = assign_next(project=asks, annotator=alice)
    assert assignment is not None
    return assignment


def address(name: str, assignment: Assignment) -> str:
    return reverse(name, args=[assignment.comparison.project.slug, assignment.pk])


def token_of(assignment: Assignment, text: str) -> str:
    completion = assignment.comparison.completions.get(text=text)
    return next(token for token, pk in tokens_of(assignment).items() if pk == completion.pk)


def send(client: Client, assignment: Assignment, **fields: Any) -> Any:
    data = {"idempotency_key": str(uuid.uuid4()), "guideline": "1", "choice": "equal", **fields}
    return client.post(address("submit", assignment), data, headers=HTMX)


def ratings(assignment: Assignment, helpful: str = "4", tone: str = "1") -> dict[str, str]:
    return {
        f"rating-{token}-{key}": value
        for token in tokens_of(assignment)
        for key, value in (("helpful", helpful), ("tone", tone))
    }


def shown(response: Any) -> str:
    return str(response.content.decode())


def label(client: Client, project: Project) -> str:
    return shown(client.get(reverse("label", args=[project.slug])))


# ── Ratings ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("side_by_side", [True, False])
def test_every_answer_can_be_rated_and_nothing_is_chosen_beforehand(
    side_by_side: bool, held: Assignment, asks: Project, browser: Client
):
    Project.objects.update(rate_side_by_side=side_by_side)
    page = label(browser, asks)
    for token in tokens_of(held):
        steps = re.findall(rf'<input type="radio" name="rating-{token}-helpful" value="(\d)"([^>]*)>', page)
        assert [value for value, _ in steps] == ["1", "2", "3", "4", "5"]
        assert not any("checked" in rest for _, rest in steps)
        assert re.findall(rf'name="rating-{token}-tone" value="(\d)"', page) == ["0", "1"]
    assert ('id="ratings"' in page) is side_by_side


def test_ratings_are_stored_by_criterion_and_come_back_to_be_changed(held: Assignment, browser: Client):
    assert send(browser, held, **ratings(held, helpful="5", tone="0")).status_code == 200
    values = Judgment.objects.get().ratings.values_list("criterion__key", "value")
    assert sorted(values) == [("helpful", 5), ("helpful", 5), ("tone", 0), ("tone", 0)]
    page = shown(browser.get(address("revise", held)))
    assert len(re.findall(r'-helpful" value="5"[^>]* checked', page)) == 2
    assert len(re.findall(r'-tone" value="0"[^>]* checked', page)) == 2


def test_a_rating_that_lacks_is_named_by_criterion_and_letter(held: Assignment, browser: Client):
    some = ratings(held)
    letter = "AB"[list(tokens_of(held)).index(token_of(held, "No."))]
    del some[f"rating-{token_of(held, 'No.')}-tone"]
    answer = send(browser, held, **some)
    assert answer.status_code == 422
    assert f"Still to be rated: Tone ({letter})." in shown(answer)
    assert len(re.findall(r'-helpful" value="4"[^>]* checked', shown(answer))) == 2
    assert not Judgment.objects.exists()


# ── Corrections ───────────────────────────────────────────────────────────────────────


def test_a_text_that_nobody_touched_is_no_correction_whatever_the_browser_did_to_it(
    held: Assignment, browser: Client
):
    as_sent = {
        f"correction-{token_of(held, CRLF)}": "First line.\r\nSecond  line.\r\n\r\nThird line.",
        f"correction-{token_of(held, 'No.')}": "No.",
    }
    send(browser, held, **ratings(held), **as_sent)
    assert Judgment.objects.get().corrections.count() == 0


def test_a_correction_keeps_the_line_breaks_that_were_there(held: Assignment, browser: Client):
    edited = "First line.\r\nSecond line!\r\n\r\nThird line."
    send(browser, held, **ratings(held), **{f"correction-{token_of(held, CRLF)}": edited})
    correction = Judgment.objects.get().corrections.get()
    assert correction.text == "First line.\r\nSecond line!\n\nThird line."
    # "First line.\r\n" has 13 characters; two spaces after "Second" became one, the stop an exclamation.
    assert list(correction.edits.values_list("start", "end", "quote", "replacement")) == [
        (19, 21, "  ", " "),
        (25, 26, ".", "!"),
    ]
    page = shown(browser.get(address("revise", held)))
    assert "<del>.</del><ins>!</ins>" in page


def test_a_refused_page_shows_the_difference(held: Assignment, browser: Client):
    answer = send(browser, held, choice="", **{f"correction-{token_of(held, 'No.')}": "<b>No!"})
    assert answer.status_code == 422
    assert "<ins>&lt;b&gt;</ins>No<del>.</del><ins>!</ins>" in shown(answer)


def test_an_emptied_text_says_that_nothing_of_it_should_stand(held: Assignment, browser: Client):
    send(browser, held, **ratings(held), **{f"correction-{token_of(held, 'No.')}": ""})
    correction = Judgment.objects.get().corrections.get()
    assert (correction.text, correction.edits.get().quote) == ("", "No.")


# ── Critiques, one's own answer ───────────────────────────────────────────────────────


def test_critiques_and_the_own_answer_are_stored_and_come_back(held: Assignment, browser: Client):
    texts = {f"critique-{token_of(held, 'No.')}": " Too\r\nshort. ", "demonstration": "\r\n  Two\r\nminutes."}
    send(browser, held, **ratings(held), **texts)
    judgment = Judgment.objects.get()
    assert [(c.completion.text, c.text) for c in judgment.critiques.all()] == [("No.", "Too\nshort.")]
    assert judgment.demonstration.text == "\n  Two\nminutes."
    page = shown(browser.get(address("revise", held)))
    # The first line break after a textarea's tag is not part of its text; the second is.
    assert ">\nToo\nshort.</textarea>" in page
    assert ">\n\n  Two\nminutes.</textarea>" in page


def test_fields_of_questions_that_are_off_are_not_on_the_page(
    held: Assignment, asks: Project, browser: Client
):
    page = label(browser, asks)
    parts = ['name="correction-', 'name="critique-', 'name="demonstration"', 'name="rating-']
    assert all(part in page for part in parts)
    Project.objects.update(ask_correction=False, ask_critique=False, ask_demonstration=False)
    Criterion.objects.get(key="tone").delete()
    Criterion.objects.get(key="helpful").delete()
    page = label(browser, asks)
    assert not any(part in page for part in parts)


def test_a_page_without_verdict_offers_none_and_can_be_sent(held: Assignment, asks: Project, browser: Client):
    Project.objects.update(ask_verdict=False)
    page = label(browser, asks)
    assert 'value="equal"' not in page
    assert 'value="cannot_judge"' in page
    assert send(browser, held, choice="").status_code == 422
    send(browser, held, choice="", **ratings(held))
    assert Judgment.objects.get().verdict == Verdict.NOT_ASKED


def test_where_only_marks_are_asked_one_says_that_one_has_looked(
    held: Assignment, asks: Project, browser: Client
):
    Project.objects.update(ask_verdict=False, ask_demonstration=False)
    for criterion in Criterion.objects.all():
        criterion.delete()
    assert 'value="not_asked"' in label(browser, asks)
    assert "Confirm that you reviewed it" in shown(send(browser, held, choice=""))
    assert not Judgment.objects.exists()
    send(browser, held, choice="not_asked")
    assert Judgment.objects.get().verdict == Verdict.NOT_ASKED


# ── Missing info ──────────────────────────────────────────────────────────────────────


def test_a_title_and_several_sentences_are_evidence_and_a_place_is_kept(held: Assignment, browser: Client):
    row = {
        "missing-candidate": token_of(held, "No."),
        "missing-category": "missing",
        "missing-text": "why",
        "missing-evidence": "1:",
        "missing-further": "0:1 1:0",
        "missing-insert": "2",
    }
    send(browser, held, **ratings(held), **row)
    stored = Judgment.objects.get().missing_info.get()
    assert (stored.passage, stored.sentence, stored.quote, stored.insert_at) == (1, None, "Water", 2)
    assert [more["quote"] for more in stored.further_evidence] == ["Wet.", "Cold."]


@pytest.mark.parametrize("field", ["missing-evidence", "missing-further", "missing-insert"])
def test_nonsense_in_a_field_that_scripts_fill_is_refused(field: str, held: Assignment, browser: Client):
    row = {
        "missing-candidate": token_of(held, "No."),
        "missing-category": "missing",
        "missing-text": "why",
        field: "x:y",
    }
    answer = send(browser, held, **ratings(held), **row)
    assert (answer.status_code, "no longer fits" in shown(answer)) == (422, True)


def test_a_change_of_an_answer_with_all_its_evidence_loses_nothing(
    held: Assignment, alice: User, browser: Client
):
    first = held.comparison.completions.get(text="No.")
    category = held.comparison.project.categories.get(key="missing")
    missing_info = MissingInfoInput(
        completion_id=first.pk,
        category_id=category.pk,
        insert_at=1,
        passage=0,
        sentence=1,
        further_evidence=(EvidencePointer(passage=1), EvidencePointer(passage=0, sentence=0)),
    )
    factories.make_judgment(held.comparison, alice, missing_info=(missing_info,))
    page = shown(browser.get(address("revise", held)))
    names = ("candidate", "category", "text", "evidence", "further", "insert")
    form: dict[str, Any] = {f"missing-{name}": [] for name in names}
    for fieldset in re.findall(r'<fieldset class="missing__row">.*?</fieldset>', page, re.S):
        for name in names:
            inputs = re.search(rf'<input type="hidden" name="missing-{name}" value="([^"]*)"', fieldset)
            chosen = re.search(r'<option value="([^"]*)" selected', fieldset)
            form[f"missing-{name}"].append(
                inputs.group(1) if inputs else chosen.group(1) if name == "evidence" and chosen else ""
            )
    send(browser, held, **ratings(held), **form)
    old, new = Judgment.objects.order_by("pk")
    fields = ("text", "insert_at", "passage", "sentence", "quote", "further_evidence")
    assert list(new.missing_info.values_list(*fields)) == list(old.missing_info.values_list(*fields))


# ── Doubts ────────────────────────────────────────────────────────────────────────────


def confirmed(response: Any) -> str:
    match = re.search(r'name="confirmed" value="([^"]*)"', shown(response))
    assert match
    return match.group(1)


@pytest.fixture
def three(project: Project, alice: User) -> Assignment:
    factories.make_comparison(project, ["one", "two", "three"])
    assignment = assign_next(project=project, annotator=alice)
    assert assignment is not None
    return assignment


def ranks(assignment: Assignment, *numbers: str) -> dict[str, str]:
    return {f"rank-{token}": number for token, number in zip(tokens_of(assignment), numbers, strict=True)}


def test_the_order_as_shown_is_asked_about_once(three: Assignment, browser: Client):
    as_shown = {"choice": "", **ranks(three, "1", "2", "3")}
    response = send(browser, three, **as_shown)
    assert response.status_code == 422
    assert re.search(r'role="alert"[^>]*>.*exactly the order shown', shown(response), re.S)
    assert not Judgment.objects.exists()
    assert len(re.findall(r"<option[^>]* selected", shown(response))) == 3
    send(browser, three, **as_shown, confirmed=confirmed(response))
    assert Judgment.objects.get().ranks.count() == 3


def test_another_doubt_asks_again_and_what_was_asked_is_not_forgotten(three: Assignment, browser: Client):
    response = send(browser, three, choice="", **ranks(three, "1", "2", "3"))
    token = list(tokens_of(three))[1]
    completion = three.comparison.completions.get(pk=tokens_of(three)[token])
    mark = {
        "candidate": token,
        "category": "untruthful",
        "start": 0,
        "end": 1,
        "quote": completion.text[0],
        "text_hash": completion.text_hash,
    }
    marked = {"choice": "", "span_flags": json.dumps([mark]), **ranks(three, "2", "1", "3")}
    again = send(browser, three, **marked, confirmed=confirmed(response))
    assert again.status_code == 422
    assert "B is ranked above A, but has more or more severe error spans." in shown(again)
    assert confirmed(again) == "as-shown against-marks-B-A"
    assert send(browser, three, **marked, confirmed=confirmed(again)).status_code == 200
    assert Judgment.objects.count() == 1


# ── Rules that changed ────────────────────────────────────────────────────────────────

CHANGED = "The guidelines have changed."


def test_the_first_rules_announce_nothing_and_count_as_read_at_the_first_submit(
    held: Assignment, asks: Project, alice: User, browser: Client
):
    assert CHANGED not in label(browser, asks)
    assert Membership.objects.get(user=alice).guideline_seen is None
    send(browser, held, **ratings(held))
    assert Membership.objects.get(user=alice).guideline_seen == 1


def test_changed_rules_announce_themselves_until_they_are_read(
    held: Assignment, asks: Project, alice: User, browser: Client
):
    send(browser, held, **ratings(held))
    publish_guideline(project=asks, text="New rules.", author=None)
    factories.make_comparison(asks)
    home = reverse("project", args=[asks.slug])
    assert CHANGED in label(browser, asks)
    assert CHANGED in shown(browser.get(home))
    answer = browser.post(reverse("guidelines-read", args=[asks.slug]), {"version": "2"})
    assert (answer.status_code, answer["Location"]) == (302, reverse("label", args=[asks.slug]))
    assert CHANGED not in label(browser, asks)
    assert CHANGED not in shown(browser.get(home))
    assert Membership.objects.get(user=alice).guideline_seen == 2


def test_a_submit_under_changed_rules_does_not_count_as_reading_them(
    held: Assignment, asks: Project, alice: User, browser: Client
):
    send(browser, held, **ratings(held))
    publish_guideline(project=asks, text="New rules.", author=None)
    send(browser, held, guideline="2", **ratings(held))
    assert Membership.objects.get(user=alice).guideline_seen == 1


def test_who_judged_before_such_things_were_remembered_is_told_too(
    held: Assignment, asks: Project, alice: User, browser: Client
):
    send(browser, held, **ratings(held))
    Membership.objects.update(guideline_seen=None)
    publish_guideline(project=asks, text="New rules.", author=None)
    factories.make_comparison(asks)
    assert CHANGED in label(browser, asks)


def test_changed_rules_say_nothing_to_who_never_had_any_on_screen(
    asks: Project, alice: User, browser: Client
):
    """A vote of a side-by-side comparison and an imported annotation have no guidelines beside them."""
    for fields in ({"guideline": None}, {"imported_from": {"file": "votes.csv"}}):
        voted = factories.lease_to(factories.make_comparison(asks), alice)
        Assignment.objects.filter(pk=voted.pk).update(state=AssignmentState.SUBMITTED)
        known = {"guideline": asks.guidelines.get(), **fields}
        Judgment.objects.create(
            assignment=voted,
            comparison=voted.comparison,
            annotator=alice,
            verdict=Verdict.EQUAL,
            idempotency_key=uuid.uuid4(),
            **known,
        )
    publish_guideline(project=asks, text="New rules.", author=None)
    factories.make_comparison(asks)
    assert CHANGED not in label(browser, asks)
    assert CHANGED not in shown(browser.get(reverse("project", args=[asks.slug])))


@pytest.mark.parametrize("version", ["", "x", "7", "-1"])
def test_rules_that_there_are_not_cannot_be_read(version: str, asks: Project, alice: User, browser: Client):
    answer = browser.post(reverse("guidelines-read", args=[asks.slug]), {"version": version})
    assert answer.status_code == 400
    assert Membership.objects.get(user=alice).guideline_seen is None


def test_reading_an_older_version_takes_nothing_back(asks: Project, alice: User, browser: Client):
    publish_guideline(project=asks, text="New rules.", author=None)
    for version in ("2", "1"):
        browser.post(reverse("guidelines-read", args=[asks.slug]), {"version": version})
    assert Membership.objects.get(user=alice).guideline_seen == 2


# ── Flags ─────────────────────────────────────────────────────────────────────────────


def test_a_flag_goes_to_reviewers_and_the_comparison_stays(held: Assignment, browser: Client):
    answer = browser.post(address("flag", held), {"reason": "broken", "details": "odd"}, headers=HTMX)
    assert answer.status_code == 200
    assert "Reported to the reviewers" in shown(answer)
    assert "<html" not in shown(answer)
    assert ItemFlag.objects.values_list("reason", "details").get() == ("broken", "odd")
    assert Review.objects.get().reason == ReviewReason.FLAGGED
    held.refresh_from_db()
    assert held.state == AssignmentState.LEASED


def test_a_flag_without_reason_is_asked_for_one_also_without_javascript(held: Assignment, browser: Client):
    answer = browser.post(address("flag", held), {})
    assert answer.status_code == 422
    assert "Choose a reason." in shown(answer)
    assert "<html" in shown(answer)
    assert not ItemFlag.objects.exists()


# ── Gold ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def gold(project: Project, alice: User) -> Assignment:
    """A gold item in Alice's hands: "right" is known to be better than "wrong"."""
    Project.objects.filter(pk=project.pk).update(gold_feedback=True, gold_share=1.0)
    factories.make_gold_item(project, (1, 2), texts=["right", "wrong"], explanation="It is *so*.")
    factories.make_comparison(project, ["work A", "work B"])
    assignment = assign_next(project=Project.objects.get(pk=project.pk), annotator=alice)
    assert assignment is not None
    assert assignment.comparison.completions.filter(text="right").exists()
    return assignment


def winner(assignment: Assignment, text: str) -> str:
    return f"win:{token_of(assignment, text)}:2"


@pytest.mark.parametrize(("text", "word"), [("right", "Right."), ("wrong", "Not quite.")])
def test_after_a_gold_item_the_next_page_says_what_was_known_and_why(
    text: str, word: str, gold: Assignment, browser: Client
):
    letters = dict(zip(tokens_of(gold), "AB", strict=True))
    order = f"{letters[token_of(gold, 'right')]} &gt; {letters[token_of(gold, 'wrong')]}"
    page = shown(send(browser, gold, choice=winner(gold, text)))
    assert "work A" in page
    for part in (word, order, "It is <em>so</em>."):
        assert part in page


def test_feedback_comes_alone_where_the_next_page_is_in_hand_already(gold: Assignment, browser: Client):
    data = {"idempotency_key": str(uuid.uuid4()), "choice": winner(gold, "right")}
    answer = browser.post(address("submit", gold), data, headers={**HTMX, "X-Next-In-Hand": "yes"})
    assert answer.status_code == 200
    assert "Right." in shown(answer)
    assert 'id="screen"' not in shown(answer)


def test_without_javascript_feedback_comes_after_the_redirect(gold: Assignment, browser: Client):
    data = {"idempotency_key": str(uuid.uuid4()), "choice": winner(gold, "wrong")}
    page = browser.post(address("submit", gold), data, follow=True)
    assert page.redirect_chain[0][0].endswith(f"?after={gold.pk}")
    assert "Not quite." in shown(page)


def test_nothing_is_said_of_work_or_by_a_silent_project(gold: Assignment, browser: Client):
    Project.objects.update(gold_feedback=False)
    page = shown(send(browser, gold, choice=winner(gold, "wrong")))
    assert 'id="feedback"' not in page


def test_nobody_asks_for_the_feedback_of_another(
    gold: Assignment, project: Project, bob: User, browser: Client, client_of: ClientOf
):
    send(browser, gold, choice=winner(gold, "wrong"))
    url = reverse("label", args=[project.slug])
    assert client_of(bob).get(f"{url}?after={gold.pk}").status_code == 404


# ── One's own pace ────────────────────────────────────────────────────────────────────


def test_ones_own_count_and_median_stand_on_the_screen_and_at_home(
    project: Project, alice: User, bob: User, browser: Client
):
    for seconds in (10, 100, 65):
        factories.make_judgment(factories.make_comparison(project), alice, active_seconds=seconds)
    factories.make_judgment(factories.make_comparison(project), bob, active_seconds=9000)
    # Yesterday's work is no part of today's count, and part of the pace.
    Assignment.objects.filter(judgments__active_seconds=100).update(closed_at="2020-01-01T12:00:00Z")
    factories.make_comparison(project)
    assert "2 today · median 1:05 min" in label(browser, project)
    home = shown(browser.get(reverse("project", args=[project.slug])))
    assert "2 today" in home
    assert "median 1:05 min" in home


def test_a_day_that_is_full_says_so(project: Project, alice: User, browser: Client):
    Project.objects.filter(pk=project.pk).update(daily_limit=1)
    for _ in range(2):
        factories.make_comparison(project)
    assignment = assign_next(project=Project.objects.get(pk=project.pk), annotator=alice)
    assert assignment is not None
    assert "That is all for today" in shown(send(browser, assignment))


def test_every_question_together_costs_the_database_no_more_than_none(
    asks: Project, held: Assignment, browser: Client, django_assert_max_num_queries
):
    label(browser, asks)
    with django_assert_max_num_queries(25) as everything:
        label(browser, asks)
    Project.objects.update(ask_correction=False, ask_critique=False, ask_demonstration=False)
    for criterion in Criterion.objects.all():
        criterion.delete()
    label(browser, asks)
    with django_assert_max_num_queries(25) as nothing:
        label(browser, asks)
    assert len(everything) == len(nothing)
