"""Every question by request and response: ratings, corrections, critiques, missing info, doubts, flags."""

import json
import re
from typing import Any

import pytest
from django.test import Client

from annotation.choices import AssignmentState, ReviewReason, Verdict
from annotation.models import Assignment, Criterion, ItemFlag, Judgment, Project, Review, User
from annotation.record.judgment import EvidencePointer, MissingPart
from annotation.services.assignments.display_order import tokens_of
from annotation.services.assignments.next import assign_next
from tests import factories
from tests.annotation.labelling.questions_scene import (
    CRLF,
    HTMX,
    address,
    label,
    ratings,
    send,
    shown,
    token_of,
)


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
    missing_info = MissingPart(
        completion=str(first.pk),
        category=category.key,
        insert_at=1,
        evidence=(
            EvidencePointer(passage=0, sentence=1),
            EvidencePointer(passage=1),
            EvidencePointer(passage=0, sentence=0),
        ),
    )
    factories.make_judgment(held.comparison, alice, missing=(missing_info,))
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
