"""Prompts that bring their answers: they are put before annotators at once, and once."""

import json
import uuid
from typing import Any

import pytest

from annotation.choices import SourceKind
from annotation.errors import ImportErrors
from annotation.exchange.prompts import import_prompts
from annotation.models import Comparison, Completion, CompletionSource, Project, Prompt, User
from annotation.services.assignments.next import assign_next
from annotation.services.texts import create_comparison
from annotation.text.identity import content_hash, text_hash
from tests import factories

pytestmark = pytest.mark.django_db


def bring(project: Project, *objects: dict[str, Any]):
    return import_prompts(project=project, lines=[json.dumps(task) for task in objects], name="tasks.jsonl")


TEA = {
    "prompt": "What is tea? 🍵",
    "context": [{"title": "Tea", "sentences": ["Tea is a drink.", "It is hot."]}],
    "tags": ["easy"],
    "completions": [{"text": "A drink. 👩‍👩‍👧", "source": "model-1"}, 'A "leaf"\t\\N\nor two'],
}


def test_answers_come_in_as_they_stand_in_the_file(project: Project):
    report = bring(project, TEA)
    assert (report.added, report.comparisons) == (1, 1)
    comparison = Comparison.objects.get()
    prompt = comparison.prompt
    assert prompt.messages == [{"role": "user", "content": "What is tea? 🍵"}]
    assert prompt.context == TEA["context"]
    assert (prompt.tags, prompt.references) == (["easy"], [])
    digest = content_hash(prompt.messages, prompt.context)
    assert prompt.content_hash == digest
    stored = [
        (candidate.completion.text, candidate.completion.source.name, candidate.completion.text_hash)
        for candidate in comparison.candidates.order_by("index")
    ]
    assert stored == [
        ("A drink. 👩‍👩‍👧", "model-1", text_hash("A drink. 👩‍👩‍👧")),
        ('A "leaf"\t\\N\nor two', "imported answers", text_hash('A "leaf"\t\\N\nor two')),
    ]
    assert {source.kind for source in CompletionSource.objects.all()} == {SourceKind.IMPORT}


def test_an_imported_row_is_the_row_that_the_model_would_have_saved(project: Project):
    bring(project, TEA)
    imported = Comparison.objects.get()
    prompt = factories.make_prompt(project, f"Another? {uuid.uuid4()}")
    saved = create_comparison(
        prompt=prompt, completions=factories.make_completions(prompt, ["Yes.", "No."]), round_number=1
    )
    varying_fields = {"id", "prompt_id", "completion_set", "shuffle", "created_at"}
    for ours, theirs, left_out in (
        (imported, saved, varying_fields),
        (
            imported.candidates.first().completion,
            saved.candidates.first().completion,
            {"id", "prompt_id", "source_id", "text", "text_hash", "created_at"}
            # What sampling wrote and a file cannot know.
            | {"sampling", "seed", "finish_reason", "token_count"},
        ),
    ):
        names = [field.attname for field in ours._meta.concrete_fields if field.attname not in left_out]
        assert [getattr(ours, name) for name in names] == [getattr(theirs, name) for name in names]
        assert abs((ours.created_at - theirs.created_at).total_seconds()) < 60


def test_importing_twice_adds_nothing(project: Project):
    bring(project, TEA)
    before = [model.objects.count() for model in (Prompt, Completion, Comparison, CompletionSource)]
    report = bring(project, TEA, TEA)
    assert (report.added, report.already_there, report.comparisons) == (0, 2, 0)
    assert [model.objects.count() for model in (Prompt, Completion, Comparison, CompletionSource)] == before


def test_another_answer_to_a_known_prompt_makes_another_comparison(project: Project):
    bring(project, {"prompt": "Tea?", "completions": ["Yes.", "No."]})
    report = bring(project, {"prompt": "Tea?", "completions": ["Yes.", "Perhaps."]})
    assert (report.added, report.already_there, report.comparisons) == (0, 1, 1)
    assert sorted(Completion.objects.values_list("text", flat=True)) == ["No.", "Perhaps.", "Yes."]


def test_a_prompt_without_answers_is_only_a_prompt(project: Project):
    report = bring(project, {"prompt": "Tea?"}, {"prompt": "Coffee?", "completions": ["Yes.", "No."]})
    assert (report.added, report.comparisons) == (2, 1)
    assert Comparison.objects.get().prompt.last_question == "Coffee?"


def test_imported_comparisons_are_handed_out_and_rows_can_be_added_after_them(project: Project, alice: User):
    project.overlap = 3
    project.save()
    bring(project, *({"prompt": f"Tea {n}?", "completions": ["Yes.", "No.", "Both."]} for n in range(5)))
    later = factories.make_comparison(project)
    assert later.pk == Comparison.objects.latest("pk").pk
    assignment = assign_next(project=project, annotator=alice)
    assert assignment.comparison.prompt.last_question == "Tea 0?"
    assignment.comparison.refresh_from_db()
    assert (assignment.comparison.overlap, assignment.comparison.open_slots) == (3, 2)


@pytest.mark.parametrize(
    ("completions", "message"),
    [
        ([], "row 2, field completions: A list of at least one answer is expected"),
        ("Yes.", "row 2, field completions: A list of at least one answer is expected"),
        (["Yes.", "Yes."], "row 2, field completions: The same answer stands there twice"),
        (["Yes.", ""], "row 2, field completions[1]: The text is empty"),
        ([{"source": "m"}], "row 2, field completions[0].text: This field is missing"),
        ([{"text": "Yes.", "sourse": "m"}], "Did you mean source?"),
        (
            [{"text": "Yes.", "source": "m" * 121}],
            "row 2, field completions[0].source: The text is longer",
        ),
        (["a\x00"], "row 2, field completions[0]: Character 1 is NUL"),
    ],
)
def test_a_faulty_answer_is_named_and_nothing_is_imported(project: Project, completions: Any, message: str):
    with pytest.raises(ImportErrors, match=message.replace("[", r"\[").replace("?", r"\?")):
        bring(project, TEA, {"prompt": "Tea?", "completions": completions})
    assert not Prompt.objects.exists()
    assert not Completion.objects.exists()
