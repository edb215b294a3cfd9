"""Questions about spans and about steps of a trace: answers, refusals, asking again, agreement, files."""

import json
import re
import uuid
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import settings
from django.db import IntegrityError, transaction
from django.template.loader import render_to_string
from django.urls import reverse

from annotation.agreement.records import Selection
from annotation.choices import Verdict
from annotation.errors import ImportErrors
from annotation.exchange.file_exports import Export
from annotation.exchange.file_imports import import_file
from annotation.exchange.formats.registry import WRITERS
from annotation.forms.judgment import Entered
from annotation.models import Assignment, Comparison, Completion, Judgment, Project, QuestionAnswer, User
from annotation.record.judgment import AnswerPart, Target
from annotation.record.questions import Question
from annotation.selectors.questions import judgments_without
from annotation.selectors.records import records_of
from annotation.selectors.reviews import only_parts, part_keys, shared_record
from annotation.services.projects.project_questions import ask_again
from annotation.services.projects.questions import delete_question
from annotation.services.texts import create_comparison
from annotation.statistics.compute import compute_report
from annotation.views.labelling.questions import questions_on_screen, rendered_of_step
from tests import factories
from tests.annotation.judgments.answers import completions_of, prefer_first, span, submit
from tests.annotation.labelling.questions_scene import ClientOf, send, token_of
from tests.annotation.questions.asking import answer, ask, choices, points, shown_by
from tests.records import judgment_record
from tests.refusals import refused
from training.contract.snapshot import read_snapshot
from training.services.snapshots import freeze_snapshot

pytestmark = pytest.mark.django_db


@pytest.fixture
def marked(project: Project, carol: User, assignment: Assignment) -> Assignment:
    """Alice's lease, in a project that asks of each span how sure one is, and why where it is 2 of 2."""
    ask(project, carol, "sure", kind="scale", text="Sure?", choices=points(1, 2), subject="span")
    ask(project, carol, "why", subject="span", shown_when=shown_by("sure", "2"))
    assignment.comparison.project = project
    return assignment


@pytest.fixture
def traces(project: Project) -> list[Completion]:
    prompt = factories.make_prompt(project, split="train")
    return [
        factories.make_trace(prompt, factories.search_steps()),
        factories.make_trace(prompt, factories.search_steps("Ten hours.", tool="guess")),
    ]


@pytest.fixture
def stepped(project: Project, carol: User, traces: list[Completion]) -> Comparison:
    """Two traces, in a project that asks of each step what it is about."""
    ask(project, carol, "topic", subject="step")
    comparison = create_comparison(prompt=traces[0].prompt, completions=traces, round_number=1)
    comparison.project = project
    return comparison


def about(part: Any, key: str, value: Any) -> AnswerPart:
    return answer(key, value, completion=part.completion, span=part.place)


def prefer(traces: Sequence[Completion], **more: Any) -> Any:
    ranks = {trace.pk: rank for rank, trace in enumerate(traces, start=1)}
    return judgment_record(**{"verdict": Verdict.RANKED, "ranks": ranks, **more})


def answers_of(judgment: Judgment) -> tuple[AnswerPart, ...]:
    return records_of([judgment.pk])[judgment.pk].answers


# ── Answers ─────────────────────────────────────────────────────────────────────────────


def test_each_span_gets_answers_of_its_own(marked: Assignment, pair: Comparison) -> None:
    one, other = span(pair, "Grün"), span(pair, "gut")
    given = (about(one, "sure", 2), about(one, "why", "It is red."), about(other, "sure", 1))
    judgment = submit(marked, prefer_first(pair, spans=(one, other), answers=given))
    stored = {(part.question, part.span): part.value for part in answers_of(judgment)}
    assert stored == {
        ("sure", one.place): 2,
        ("why", one.place): "It is red.",
        ("sure", other.place): 1,
    }


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"span": None}, "answer_of_other_subject"),
        ({"span": ("untruthful", 0, 1)}, "answer_of_other_subject"),
        ({"completion": None}, "answer_of_other_subject"),
        ({"span": None, "step": 0}, "answer_of_other_subject"),
        ({"value": 3}, "invalid_answer_value"),
        ({"question": "why", "value": "So."}, "answer_not_asked"),
    ],
)
def test_an_answer_about_a_span_names_one_of_the_judgment(
    marked: Assignment, pair: Comparison, change: dict[str, Any], code: str
) -> None:
    one = span(pair, "Grün")
    fields = {"question": "sure", "value": 1, "completion": one.completion, "span": one.place, **change}
    with refused(code):
        submit(marked, prefer_first(pair, spans=(one,), answers=(AnswerPart(**fields),)))
    assert not Judgment.objects.exists()


def test_a_required_question_about_spans_is_required_where_there_is_a_span(
    project: Project, carol: User, marked: Assignment, pair: Comparison
) -> None:
    ask(
        project,
        carol,
        "sure",
        kind="scale",
        text="Sure?",
        choices=points(1, 2),
        subject="span",
        is_required=True,
    )
    marked.comparison.project = project
    with refused("answer_missing"):
        submit(marked, prefer_first(pair, spans=(span(pair, "Grün"),)))
    assert answers_of(submit(marked, prefer_first(pair))) == ()


def test_a_question_is_asked_of_spans_of_its_categories_alone(
    project: Project, carol: User, marked: Assignment, pair: Comparison, client_of: ClientOf
) -> None:
    above = project.categories.get(key="untruthful")
    factories.make_category(project, "date", parent=above)
    sure: dict[str, Any] = {"kind": "scale", "text": "Sure?", "choices": points(1, 2), "subject": "span"}
    ask(project, carol, "sure", **sure, is_required=True, categories=("untruthful",))
    marked.comparison.project = project
    date, other = span(pair, "Grün", category="date"), span(pair, "gut", category="irrelevant")
    with refused("answer_of_other_category"):
        submit(marked, prefer_first(pair, spans=(date, other), answers=(about(other, "sure", 1),)))
    with refused("answer_missing"):
        submit(marked, prefer_first(pair, spans=(date, other)))
    given = (about(date, "sure", 2), about(date, "why", "It is 1850."))
    judgment = submit(marked, prefer_first(pair, spans=(date, other), answers=given))
    assert {(part.question, part.span) for part in answers_of(judgment)} == {
        ("sure", date.place),
        ("why", date.place),
    }
    # Nobody lacks an answer about a span that it is not asked of.
    asked = project.questions.get(key="sure")
    assert not judgments_without(asked).exists()
    ask(project, carol, "sure", **sure, is_required=True, categories=("irrelevant", "untruthful"))
    asked.refresh_from_db()
    assert [row.pk for row in judgments_without(asked)] == [judgment.pk]
    assert asked.versions.count() == 1
    # The page tells its script; the sub-category goes with its category.
    project.refresh_from_db()
    page = client_of(carol).get(reverse("project-preview", args=["tea"])).content.decode()
    assert json.loads(unescape(page.split('data-categories="')[1].split('"')[0])) == [
        "irrelevant",
        "untruthful",
        "date",
    ]


def test_categories_of_a_question_are_span_categories_of_the_project(
    project: Project, carol: User, client_of: ClientOf
) -> None:
    with refused("invalid_question"):
        ask(project, carol, "why", subject="span", categories=("missing",))
    with refused("invalid_question"):
        ask(project, carol, "why", categories=("untruthful",))
    browser = client_of(carol)
    body = {"kind": "text", "text": "Why?", "subject": "span", "categories": ["untruthful"]}
    made = browser.put("/api/v1/projects/tea/questions/why/", body, content_type="application/json").json()
    assert made["categories"] == ["untruthful"]
    with refused("category_in_question"):
        delete_question(question=project.categories.get(key="untruthful"), deleted_by=carol)
    written = yaml.safe_load(browser.get("/api/v1/projects/tea/file/").json()["text"])
    assert written["questions"][0]["categories"] == ["untruthful"]
    # The editor keeps them, and takes them away.
    address = reverse("project-question", args=["tea", "why"])
    form = browser.get(address).context["form"]
    assert form["categories"].value() == ["untruthful"]
    browser.post(address, {"text": "Why?", "categories": ["irrelevant"]})
    assert project.questions.get().categories == ["irrelevant"]
    browser.post(address, {"text": "Why?"})
    assert project.questions.get().categories == []


def test_a_file_with_an_answer_about_a_span_of_another_category_is_refused(
    project: Project, carol: User, marked: Assignment, pair: Comparison, tmp_path: Path
) -> None:
    one = span(pair, "gut", category="irrelevant")
    submit(marked, prefer_first(pair, spans=(one,), answers=(about(one, "sure", 1),)))
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(Export(project=project, writer=WRITERS["jsonl"]).text_stream()))
    other = factories.make_project(slug="coffee", managers=[carol])
    sure: dict[str, Any] = {"kind": "scale", "text": "Sure?", "choices": points(1, 2), "subject": "span"}
    ask(other, carol, "sure", **sure, categories=("untruthful",))
    with pytest.raises(ImportErrors) as refusal:
        import_file(project=other, path=file)
    assert "untruthful" in refusal.value.errors[0]
    ask(other, carol, "sure", **sure, categories=("irrelevant",))
    import_file(project=other, path=file)
    assert QuestionAnswer.objects.filter(judgment__comparison__project=other).count() == 1


def test_steps_of_the_agent_get_answers_and_others_none(
    stepped: Comparison, traces: list[Completion], alice: User
) -> None:
    first, second = (str(trace.pk) for trace in traces)
    lease = factories.lease_to(stepped, alice)
    with refused("answer_of_other_subject"):
        # Step 2 is the result of a tool.
        submit(lease, prefer(traces, answers=(answer("topic", "tax", completion=first, step=2),)))
    given = (
        answer("topic", "tax", completion=second, step=1),
        answer("topic", "law", completion=first, step=0),
    )
    judgment = submit(lease, prefer(traces, answers=given))
    assert [(part.completion, part.step, part.value) for part in answers_of(judgment)] == [
        (first, 0, "law"),
        (second, 1, "tax"),
    ]


def test_a_required_question_about_steps_is_answered_for_each_step_of_the_agent(
    project: Project, carol: User, stepped: Comparison, traces: list[Completion], alice: User
) -> None:
    ask(project, carol, "topic", subject="step", is_required=True)
    stepped.project = project
    lease = factories.lease_to(stepped, alice)
    every = tuple(
        answer("topic", "law", completion=str(trace.pk), step=step) for trace in traces for step in (0, 1, 3)
    )
    with refused("answer_missing"):
        submit(lease, prefer(traces, answers=every[:-1]))
    assert len(answers_of(submit(lease, prefer(traces, answers=every)))) == 6


def test_a_part_is_not_shown_by_an_answer_about_another_kind_of_part(project: Project, carol: User) -> None:
    ask(project, carol, "topic", subject="step")
    with refused("invalid_question", field="shown_when"):
        ask(project, carol, "why", subject="span", shown_when=shown_by("topic", "tax"))
    with refused("invalid_question", field="shown_when"):
        ask(project, carol, "why", subject="completion", shown_when=shown_by("topic", "tax"))
    ask(project, carol, "faults", subject="completion")
    ask(project, carol, "why", subject="step", shown_when=shown_by("faults", "tone"))


def test_the_database_holds_one_answer_about_one_subject(
    marked: Assignment, pair: Comparison, stepped: Comparison, traces: list[Completion]
) -> None:
    one = span(pair, "Grün")
    judgment = submit(marked, prefer_first(pair, spans=(one,), answers=(about(one, "sure", 1),)))
    row = QuestionAnswer.objects.get()
    same = {name: getattr(row, name) for name in ("judgment", "version", "completion", "span")}
    for fields in (same, {**same, "step": traces[0].steps.first()}, {**same, "completion": None}):
        with pytest.raises(IntegrityError), transaction.atomic():
            QuestionAnswer.objects.create(value=2, **fields)
    assert judgment.answers.count() == 1


# ── Pages ───────────────────────────────────────────────────────────────────────────────


def test_the_page_sends_answers_about_spans_with_them_and_gives_them_back(
    marked: Assignment, pair: Comparison, alice: User, client_of: ClientOf
) -> None:
    client = client_of(alice)
    page = client.get(reverse("label", args=["tea"]))
    assert b"data-span-questions" in page.content
    completion = completions_of(pair)[0]
    entry = {
        **{"candidate": token_of(marked, completion.text), "category": "untruthful", "start": 0, "end": 4},
        **{"severity": None, "quote": "Grün", "text_hash": completion.text_hash},
        "answers": {"question.sure.1.span": ["2"], "question.why.1.span": ["So."]},
    }
    old = {**entry, "answers": {"question.sure.7.span": ["2"]}}
    stale = send(client, marked, span_flags=json.dumps([old]))
    assert (stale.status_code, list(stale.context["screen"].form.errors)) == (422, ["answers"])
    assert send(client, marked, span_flags=json.dumps([entry])).status_code == 200
    (judgment,) = Judgment.objects.all()
    assert [(part.question, part.value) for part in answers_of(judgment)] == [("sure", 2), ("why", "So.")]
    (span_again,) = json.loads(Entered.from_judgment(judgment).span_flags)
    assert span_again["answers"] == entry["answers"]


def test_the_page_sends_answers_about_steps_and_gives_them_back(
    stepped: Comparison, traces: list[Completion], alice: User, client_of: ClientOf
) -> None:
    client = client_of(alice)
    screen = client.get(reverse("label", args=["tea"])).context["screen"]
    token = next(c.token for c in screen.candidates if c.source == traces[0].text)
    assert {place.field for place in screen.questions} == {
        f"question.topic.1.{candidate.token}.{step}" for candidate in screen.candidates for step in (0, 1, 3)
    }
    name = f"question.topic.1.{token}.1"
    refused_step = send(client, screen.assignment, **{f"question.topic.1.{token}.2": "tax"})
    assert (refused_step.status_code, list(refused_step.context["screen"].form.errors)) == (422, ["answers"])
    assert send(client, screen.assignment, **{name: "tax"}).status_code == 200
    (judgment,) = Judgment.objects.all()
    (part,) = answers_of(judgment)
    assert (part.completion, part.step, part.value) == (str(traces[0].pk), 1, "tax")
    assert Entered.from_judgment(judgment).answers == {name: ("tax",)}
    page = client.get(reverse("revise", args=["tea", screen.assignment.pk])).content.decode()
    assert page.count("checked") == 2  # the preference, and this answer


def test_answers_about_parts_are_sent_and_read_over_the_api(
    marked: Assignment, pair: Comparison, alice: User, client_of: ClientOf
) -> None:
    completion = completions_of(pair)[0]
    token = token_of(marked, completion.text)
    place = {"category": "untruthful", "start": 0, "end": 4}
    body = {
        "verdict": "equal",
        "span_flags": [{"answer": token, **place, "quote": "Grün", "text_hash": completion.text_hash}],
        "answers": [{"question": "sure", "completion": token, "span": place, "value": 1}],
    }
    sent = client_of(alice).post(
        f"/api/v1/projects/tea/assignments/{marked.pk}/judgment/",
        json.dumps(body),
        content_type="application/json",
        headers={"Idempotency-Key": str(uuid.uuid4())},
    )
    assert sent.status_code == 201, sent.content
    assert sent.json()["judgment"]["answers"] == [
        {"question": "sure", "completion": token, "step": None, "span": place, "value": 1, "version": 1}
    ]


# ── Asked again ─────────────────────────────────────────────────────────────────────────


def test_only_who_marked_or_read_a_trace_is_asked_again(
    project: Project, carol: User, alice: User, traces: list[Completion]
) -> None:
    plain, other = (factories.make_comparison(project, [f"{n} one two", "three"]) for n in (1, 2))
    for each in (plain, other):
        each.project = project
    one = span(plain, "one")
    submit(factories.lease_to(plain, alice), prefer_first(plain, spans=(one,)))
    submit(factories.lease_to(other, alice), prefer_first(other))
    agents = create_comparison(prompt=traces[0].prompt, completions=traces, round_number=1)
    submit(factories.lease_to(agents, alice), prefer(traces))
    of_spans = ask(project, carol, "why", subject="span")
    of_steps = ask(project, carol, "topic", subject="step")
    assert ask_again(question=of_spans, asked_by=carol) == 1
    assert ask_again(question=of_steps, asked_by=carol) == 1


# ── Reviews ─────────────────────────────────────────────────────────────────────────────


def test_an_answer_about_a_span_comes_with_its_span(pair: Comparison) -> None:
    one = span(pair, "Grün")
    hers = prefer_first(pair, spans=(one,), answers=(about(one, "sure", 1),))
    his = prefer_first(pair, spans=(one,), answers=(about(one, "sure", 2),))
    shared = shared_record([hers, his])
    assert shared is not None
    assert (shared.spans, shared.answers) == ((one,), ())
    answered = next(key for key in part_keys(hers) if key[0] == "answer")
    # Without its span there is nothing that it is about.
    assert only_parts(hers, {answered}).answers == ()


# ── Agreement ───────────────────────────────────────────────────────────────────────────


def alpha(project: Project) -> Any:
    figures = compute_report(project, Selection()).agreement
    return next(figure.estimate for figure in figures if figure.key == "question-nominal")


def test_agreement_about_steps_has_steps_as_its_units(
    project: Project, stepped: Comparison, traces: list[Completion], alice: User, bob: User
) -> None:
    Project.objects.filter(pk=project.pk).update(overlap=2)
    Comparison.objects.filter(pk=stepped.pk).update(overlap=2, open_slots=2)
    stepped.refresh_from_db()
    stepped.project = project
    first, second = (str(trace.pk) for trace in traces)
    places = [(first, 0), (first, 1), (second, 0)]
    for person, values in ((alice, ("law", "tax", "law")), (bob, ("law", "tax", "tax"))):
        given = tuple(
            answer("topic", value, completion=completion, step=step)
            for (completion, step), value in zip(places, values, strict=True)
        )
        submit(factories.lease_to(stepped, person), prefer(traces, answers=given))
    # law-law, tax-tax, law-tax: observed 2/6, expected 2 · 3 · 3 / 30; α = 1 − (1/3) / (3/5).
    assert alpha(project).value == pytest.approx(4 / 9)


def test_agreement_about_spans_counts_the_same_spans_alone(
    project: Project, carol: User, alice: User, bob: User
) -> None:
    project.overlap = 2
    project.save()
    ask(project, carol, "topic", subject="span")
    comparison = factories.make_comparison(project, ["one two three four", "five"])
    comparison.project = project
    quotes = {alice: ("one", "two", "three", "four"), bob: ("one", "two", "three", "two three")}
    values = {alice: ("law", "tax", "law", "law"), bob: ("law", "tax", "tax", "tax")}
    for person in (alice, bob):
        spans = tuple(span(comparison, quote) for quote in quotes[person])
        given = tuple(about(part, "topic", value) for part, value in zip(spans, values[person], strict=True))
        submit(factories.lease_to(comparison, person), prefer_first(comparison, spans=spans, answers=given))
    # "four" and "two three" were marked by one alone; the rest as in the test above.
    assert alpha(project).value == pytest.approx(4 / 9)


# ── Files ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def elsewhere(carol: User) -> Project:
    return factories.make_project(slug="elsewhere", managers=[carol])


def written_to(folder: Path, project: Project, format_name: str) -> Path:
    path = folder / f"out.{WRITERS[format_name].container}"
    path.write_text("".join(Export(project=project, writer=WRITERS[format_name]).text_stream()))
    return path


@pytest.mark.parametrize("format_name", ["jsonl", "label-studio"])
def test_answers_about_spans_return(
    project: Project,
    elsewhere: Project,
    carol: User,
    marked: Assignment,
    pair: Comparison,
    tmp_path: Path,
    format_name: str,
) -> None:
    ask(elsewhere, carol, "sure", kind="scale", text="Sure?", choices=points(1, 2), subject="span")
    ask(elsewhere, carol, "why", subject="span", shown_when=shown_by("sure", "2"))
    one, other = span(pair, "Grün"), span(pair, "gut", category="irrelevant")
    given = (about(one, "sure", 2), about(one, "why", "So."), about(other, "sure", 1))
    submit(marked, prefer_first(pair, spans=(one, other), answers=given))
    path = written_to(tmp_path, project, format_name)
    import_file(project=elsewhere, path=path, format_name=format_name)
    (there,) = Judgment.objects.filter(comparison__project=elsewhere)
    assert [(part.question, part.span, part.value) for part in answers_of(there)] == [
        (part.question, part.span, part.value) for part in given[:1] + given[2:] + given[1:2]
    ]
    again = import_file(project=elsewhere, path=path, format_name=format_name)
    assert again.counts["judgments"] == 0


def test_answers_about_steps_return_and_are_frozen(
    project: Project,
    elsewhere: Project,
    carol: User,
    alice: User,
    stepped: Comparison,
    traces: list[Completion],
    tmp_path: Path,
) -> None:
    ask(elsewhere, carol, "topic", subject="step")
    first = str(traces[0].pk)
    given = (answer("topic", "tax", completion=first, step=1),)
    submit(factories.lease_to(stepped, alice), prefer(traces, answers=given))
    path = written_to(tmp_path, project, "jsonl")
    import_file(project=elsewhere, path=path, format_name="jsonl")
    (there,) = Judgment.objects.filter(comparison__project=elsewhere)
    assert [(part.step, part.value) for part in answers_of(there)] == [(1, "tax")]
    line = json.loads(path.read_text())
    line["answers"][0]["step"] = 2
    path.write_text(json.dumps(line) + "\n")
    with refused("nothing_imported"):
        import_file(project=elsewhere, path=path, format_name="jsonl")
    snapshot = freeze_snapshot(project=project, rounds=[1])
    (row,) = read_snapshot(Path(settings.RONDO_HOME) / snapshot.folder)
    assert [(part.step, part.value) for part in row.answers] == [(1, "tax")]


@pytest.mark.parametrize("format_name", ["csv", "argilla"])
def test_a_format_without_a_place_for_them_says_that_it_drops_them(
    project: Project, marked: Assignment, pair: Comparison, format_name: str
) -> None:
    one = span(pair, "Grün")
    submit(marked, prefer_first(pair, spans=(one,), answers=(about(one, "sure", 1),)))
    export = Export(project=project, writer=WRITERS[format_name])
    assert "sure" not in "".join(export.text_stream())
    (reason,) = (reason for reason in export.dropped if reason.startswith("answers"))
    assert reason.startswith("answers about spans and steps")


# ── Many steps on a page ────────────────────────────────────────────────────────────────


def test_steps_that_differ_in_their_names_are_rendered_once_and_read_as_if_each_were() -> None:
    topic, why = (
        Question(key="topic", kind="choice", text="Topic <i>", subject="step", choices=choices("law", "tax")),
        Question(key="why", kind="text", text="Why?", subject="step", shown_when=shown_by("topic", "law")),
    )
    entered = {"question.topic.1.aa.1": ["law"], "question.why.1.aa.1": ["It is\n   so & <b>."]}
    places = questions_on_screen(
        [topic, why], entered, {"aa": "response A", "bb": "response “B”"}, {"aa": range(3), "bb": range(3)}
    )
    by_step: dict[Any, list[Any]] = {}
    for place in places:
        by_step.setdefault(place.target, []).append(place)
    known: dict[Any, str] = {}
    for of_step in by_step.values():
        whole = render_to_string("annotation/question_fields.html", {"places": of_step})
        shown = rendered_of_step(of_step, known)
        assert re.sub(r"\n\s+", "\n", shown) == re.sub(r"\n\s+", "\n", whole)
        assert ("It is\n   so &amp; &lt;b&gt;." in shown) == (of_step[0].target == Target("aa", 1))
    # The five others are alike.
    assert len(by_step) == 6
    assert len(known) == 1
