"""Answers to the questions of a project out and in again, in every format that carries them."""

import json
from pathlib import Path
from typing import Any

import pytest

from annotation.exchange.file_exports import Export
from annotation.exchange.file_imports import import_file
from annotation.exchange.formats.registry import WRITERS
from annotation.models import Assignment, Comparison, Judgment, Project, User
from annotation.selectors.records import records_of
from tests import factories
from tests.annotation.judgments.answers import completions_of, prefer_first, submit
from tests.annotation.questions.asking import KINDS, VALUES, answer, ask
from tests.refusals import refused

pytestmark = pytest.mark.django_db

CARRYING = {"jsonl": "jsonl", "csv": "csv", "label-studio": "json", "argilla": "json"}


@pytest.fixture
def elsewhere(carol: User) -> Project:
    """Another project of Carol's that asks the same questions."""
    other = factories.make_project(slug="elsewhere", managers=[carol])
    ask_all(other, carol)
    return other


def ask_all(project: Project, manager: User) -> None:
    for key in KINDS:
        ask(project, manager, key)
    for key in KINDS:
        ask(project, manager, f"each-{key}", **KINDS[key], subject="completion")


@pytest.fixture
def judged(project: Project, carol: User, assignment: Assignment, pair: Comparison) -> Judgment:
    """Alice's judgment, with an answer to each question about the comparison and about each response."""
    ask_all(project, carol)
    assignment.comparison.project = project
    first, second = (str(completion.pk) for completion in completions_of(pair))
    answers = [answer(key, value) for key, value in VALUES.items()]
    answers += [answer(f"each-{key}", value, completion=second) for key, value in VALUES.items()]
    answers.append(answer("each-ease", 0, completion=first))
    return submit(assignment, prefer_first(pair, answers=tuple(answers)))


def written(project: Project, format_name: str, folder: Path) -> Path:
    path = folder / f"out.{CARRYING[format_name]}"
    path.write_text("".join(Export(project=project, writer=WRITERS[format_name]).text_stream()))
    return path


def answers_in(project: Project) -> list[tuple[str, str | None, Any]]:
    """Question, text of the response and value of each answer."""
    judgment = Judgment.objects.get(comparison__project=project)
    texts = {
        str(candidate.completion_id): candidate.completion.text
        for candidate in judgment.comparison.candidates.all()
    }
    parts = records_of([judgment.pk])[judgment.pk].answers
    return sorted(
        ((part.question, part.completion and texts[part.completion], part.value) for part in parts), key=str
    )


@pytest.mark.parametrize("format_name", CARRYING)
def test_answers_of_every_kind_return(
    project: Project, elsewhere: Project, judged: Judgment, tmp_path: Path, format_name: str
) -> None:
    path = written(project, format_name, tmp_path)
    import_file(project=elsewhere, path=path, format_name=format_name)
    there = answers_in(elsewhere)
    assert len(there) == 2 * len(KINDS) + 1
    if format_name == "csv":
        # A table trims nothing else, but line breaks of the texts of responses are the other test's.
        there = [(key, text and "", value) for key, text, value in there]
        assert there == [(key, text and "", value) for key, text, value in answers_in(project)]
    else:
        assert there == answers_in(project)
    again = import_file(project=elsewhere, path=path, format_name=format_name)
    assert Judgment.objects.filter(comparison__project=elsewhere).count() == 1
    assert again.counts["judgments"] == 0


def test_a_format_without_a_place_for_answers_says_that_it_drops_them(
    project: Project, judged: Judgment
) -> None:
    export = Export(project=project, writer=WRITERS["trl-preference"])
    list(export.row_stream())
    assert sum(count for reason, count in export.dropped.items() if reason.startswith("answers")) == 1


def test_lines_of_projects_without_questions_have_no_field_for_them(
    project: Project, assignment: Assignment, pair: Comparison
) -> None:
    submit(assignment, prefer_first(pair))
    (line,) = Export(project=project, writer=WRITERS["jsonl"]).text_stream()
    assert "answers" not in json.loads(line)
    (header, *_rows) = Export(project=project, writer=WRITERS["csv"]).text_stream()
    assert "question_" not in header


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"question": "mood"}, "unknown_question"),
        ({"value": "sport"}, "invalid_answer_value"),
        ({"value": {"a": 1}}, "text_expected"),
        ({"completion": "7"}, "completion_not_there"),
    ],
)
def test_a_row_with_an_answer_that_the_project_cannot_store_is_refused(
    project: Project, elsewhere: Project, judged: Judgment, tmp_path: Path, change: dict[str, Any], code: str
) -> None:
    path = written(project, "jsonl", tmp_path)
    line = json.loads(path.read_text())
    topic = next(part for part in line["answers"] if part["question"] == "topic")
    topic |= change
    path.write_text(json.dumps(line) + "\n")
    with refused("nothing_imported") as raised:
        import_file(project=elsewhere, path=path, format_name="jsonl")
    (error,) = raised.value.errors
    assert "row 1" in error.lower() or "1" in error
    assert not Judgment.objects.filter(comparison__project=elsewhere).exists()
    record = import_file(project=elsewhere, path=path, format_name="jsonl", skip_bad=True)
    assert (record.errors_total, record.counts["judgments"]) == (1, 0)


def test_label_studio_s_own_results_answer_by_the_name_of_their_control(
    elsewhere: Project, tmp_path: Path
) -> None:
    results = [
        {
            "from_name": "question_topic",
            "to_name": "prompt",
            "type": "choices",
            "value": {"choices": ["law"]},
        },
        {"from_name": "question_each-ease", "to_name": "answer_2", "type": "rating", "value": {"rating": 4}},
    ]
    task = {
        "data": {"prompt": "Tea?", "answer_1": "Yes.", "answer_2": "No."},
        "annotations": [
            {
                "id": 1,
                "result": [
                    {
                        "from_name": "p",
                        "to_name": "answer_1,answer_2",
                        "type": "pairwise",
                        "value": {"selected": "left"},
                    },
                    *results,
                ],
            }
        ],
    }
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([task]))
    import_file(project=elsewhere, path=path, format_name="label-studio")
    assert answers_in(elsewhere) == [("each-ease", "No.", 4), ("topic", None, "law")]


def test_an_answer_to_an_earlier_version_keeps_it_where_the_project_has_it(
    project: Project, carol: User, judged: Judgment, tmp_path: Path
) -> None:
    ask(project, carol, "topic", text="Subject")
    path = written(project, "jsonl", tmp_path)
    line = json.loads(path.read_text())
    line["annotator"] = "someone"
    line["completions"][0]["text"] += " Else."
    line["spans"], line["corrections"] = [], []
    path.write_text(json.dumps(line) + "\n")
    import_file(project=project, path=path, format_name="jsonl")
    imported = Judgment.objects.get(imported_from__isnull=False)
    versions = {part.question: part.version for part in records_of([imported.pk])[imported.pk].answers}
    assert versions["topic"] == 1
