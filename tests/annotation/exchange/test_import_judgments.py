"""qa-feedback comes in exactly: everything is counted again from the raw JSON, by other means."""

import copy
import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from annotation.choices import AssignmentState, SourceKind, Verdict
from annotation.errors import ImportErrors
from annotation.exchange.file_imports import import_file
from annotation.exchange.formats.qa_feedback import ranks_from_pairs
from annotation.models import (
    Assignment,
    Category,
    Comparison,
    Completion,
    Correction,
    Judgment,
    MissingInfo,
    Project,
    Prompt,
    RankedCompletion,
    SpanFlag,
    User,
)

REPOSITORY = Path(__file__).resolve().parents[3]
RELEASED = 350
"""Questions of the real file."""
PAIRS = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]

pytestmark = pytest.mark.django_db

ITEM: dict[str, Any] = {
    "question": "How long does tea steep?",
    "passages": [
        ["Tea", "Tea\n\nTea is a drink.", "It steeps for three minutes.\n\n"],
        ["Water", "Water is wet."],
    ],
    "gold": "Three minutes.",
    "prediction 1": "Tea 🍵 steeps for ten hours. Ten hours.",
    "prediction 2": "Three minutes.",
    "prediction 3": "Four minutes.",
    "prediction 4": "No.",
    "feedback": {
        "errors": [
            {"error type": "Wrong-Grounding", "explanation": "p1 s2", "start": 6, "end": 27},
            {"error type": "Redundant", "explanation": "", "start": 28, "end": 38},
        ],
        "missing-info": [
            {"error type": "Missing-Answer", "passage_id": 1, "sentence_id": [2]},
            {"error type": "Missing-Minor-Auxiliary", "passage_id": 2, "sentence_id": [0, 1]},
        ],
        "corrected-prediction": "Tea steeps for three minutes.",
    },
    "preference": [2, 2, 1, 0, 1, 1],
}
"""A question as in the file: 2 and 3 tied before 1, 4 last."""


def bring_in(*items: dict[str, Any], project: str = "qa-feedback") -> dict[str, int]:
    """The counts of an import of these questions into a project."""
    to, _ = Project.objects.get_or_create(slug=project, defaults={"name": project})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "feedback.json"
        path.write_text(json.dumps(items), encoding="utf-8")
        counts: dict[str, int] = import_file(project=to, path=path, format_name="qa-feedback").counts
        return counts


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    item = copy.deepcopy(ITEM)
    change(item)
    return item


# ── Whole files, one of ours and the real one ─────────────────────────────────────────


def evidence_of_raw(item: dict[str, Any], missing: dict[str, Any]) -> list[str]:
    """Texts that a missing info points at: passages count from 1, texts from the title's 0."""
    return [item["passages"][missing["passage_id"] - 1][sentence] for sentence in missing["sentence_id"]]


def test_a_whole_file_comes_in_exact(data: Path):
    file = data / "qa_feedback" / "feedback.json"
    raw = json.loads(file.read_text(encoding="utf-8"))
    output = StringIO()
    call_command("import_judgments", str(file), "--format", "qa-feedback", stdout=output)
    judgments = {
        judgment.comparison.prompt.messages[0]["content"]: judgment
        for judgment in Judgment.objects.select_related("comparison__prompt")
    }
    assert len(judgments) == len(raw) == Judgment.objects.count() == Prompt.objects.count()
    assert Completion.objects.count() == 4 * len(raw)
    for item in raw:
        check_item(item, judgments[item["question"]])
    not_transitive = check_totals(raw)
    assert f"{len(raw)} judgments added" in output.getvalue()
    assert f"{not_transitive} rankings have ties that are not transitive" in output.getvalue()
    if len(raw) == RELEASED:
        # Counted in the released file.
        assert (SpanFlag.objects.count(), MissingInfo.objects.count(), not_transitive) == (958, 548, 16)


def check_item(item: dict[str, Any], judgment: Judgment) -> None:
    prompt = judgment.comparison.prompt
    assert prompt.context == [{"title": p[0], "sentences": p[1:]} for p in item["passages"]]
    assert prompt.references == [item["gold"]]
    candidates = judgment.comparison.candidates.select_related("completion").order_by("index")
    texts = [candidate.completion.text for candidate in candidates]
    assert texts == [item[f"prediction {number}"] for number in (1, 2, 3, 4)]
    first = candidates[0].completion
    spans = judgment.span_flags.select_related("category")
    assert Counter((s.category.label, s.start, s.end, s.note) for s in spans) == Counter(
        (e["error type"].replace("Wrong-G", "Wrong g"), e["start"], e["end"], e["explanation"])
        for e in item["feedback"]["errors"]
    )
    for span in spans:
        assert span.completion_id == first.pk
        assert span.quote == first.text[span.start : span.end] != ""
    stored = [
        (m.category.key, [m.quote, *(more["quote"] for more in m.further_evidence)])
        for m in judgment.missing_info.select_related("category").order_by("id")
    ]
    assert stored == [
        (m["error type"].lower(), evidence_of_raw(item, m)) for m in item["feedback"]["missing-info"]
    ]
    assert judgment.corrections.get().text == item["feedback"]["corrected-prediction"]
    ranks = dict(judgment.ranks.values_list("completion_id", "rank"))
    in_order = [ranks[candidate.completion_id] for candidate in candidates]
    for (left, right), choice in zip(PAIRS, item["preference"], strict=True):
        if choice:  # every decided pair stands
            assert (in_order[left] < in_order[right]) == (choice == 1), item["preference"]
            assert in_order[left] != in_order[right]
    assert set(in_order) == set(range(1, max(in_order) + 1))
    assert (judgment.imported_from or {})["more"]["preference"] == item["preference"]


def check_totals(raw: list[dict[str, Any]]) -> int:
    """Compare counts with the file; return how many questions have ties that are not transitive."""
    assert SpanFlag.objects.count() == sum(len(item["feedback"]["errors"]) for item in raw)
    missing = sum(len(item["feedback"]["missing-info"]) for item in raw)
    assert MissingInfo.objects.count() == missing
    pointers = sum(len(m["sentence_id"]) for item in raw for m in item["feedback"]["missing-info"])
    further = sum(len(more) for more in MissingInfo.objects.values_list("further_evidence", flat=True))
    assert missing + further == pointers
    assert Correction.objects.count() == len(raw)
    assert RankedCompletion.objects.count() == 4 * len(raw)
    # Weak orders by brute force: of all rank vectors, one says exactly what the six pairs say.
    vectors = list(itertools.product(range(1, 5), repeat=4))
    weak_orders = {
        tuple((v[a] > v[b]) - (v[a] < v[b]) for a, b in PAIRS) for v in vectors
    }  # 1: the second is better
    as_signs = [tuple({0: 0, 1: -1, 2: 1}[choice] for choice in item["preference"]) for item in raw]
    not_weak = sum(signs not in weak_orders for signs in as_signs)
    origins = Judgment.objects.values_list("imported_from", flat=True)
    broken = [(imported_from or {})["more"]["broken_ties"] for imported_from in origins]
    assert sum(bool(ties) for ties in broken) == not_weak > 0
    return not_weak


# ── Small files ───────────────────────────────────────────────────────────────────────


def test_one_item_becomes_one_submitted_judgment_of_an_annotator_who_cannot_sign_in():
    counts = bring_in(ITEM)
    assert (counts["judgments"], counts["prompts"], counts["comparisons"]) == (1, 1, 1)
    project = Project.objects.get(slug="qa-feedback")
    judgment = Judgment.objects.get()
    assert judgment.verdict == Verdict.RANKED
    by_index = judgment.ranks.order_by("completion__candidacies__index").values_list("rank", flat=True)
    assert list(by_index) == [2, 1, 1, 3]
    flags = list(judgment.span_flags.order_by("start").values_list("quote", "category__key", "note"))
    assert flags == [
        ("steeps for ten hours.", "wrong-grounding", "p1 s2"),
        ("Ten hours.", "redundant", ""),
    ]
    first, second = judgment.missing_info.order_by("id")
    assert (first.passage, first.sentence, first.quote) == (0, 1, "It steeps for three minutes.\n\n")
    assert (second.passage, second.sentence, second.quote) == (1, None, "Water")
    assert second.further_evidence == [{"passage": 1, "sentence": 0, "quote": "Water is wet."}]
    annotator = judgment.annotator
    assert not annotator.is_active
    assert not annotator.has_usable_password()
    assert judgment.assignment.state == AssignmentState.SUBMITTED
    assert Comparison.objects.get().open_slots == 0
    assert set(Completion.objects.values_list("source__kind", flat=True)) == {SourceKind.IMPORT}
    assert Category.objects.filter(project=project).count() == 8


def test_importing_twice_adds_nothing_wherever_an_item_stands():
    other = changed(lambda item: item.update(question="And coffee?"))
    bring_in(ITEM, other)
    before = {model: model.objects.count() for model in (User, Prompt, Completion, Judgment, Assignment)}
    counts = bring_in(other, ITEM)
    assert (counts["judgments"], counts["already_there"]) == (0, 2)
    assert {model: model.objects.count() for model in before} == before


def test_items_that_are_new_come_in_beside_those_that_are_there():
    bring_in(ITEM)
    counts = bring_in(ITEM, changed(lambda item: item.update(question="And coffee?")))
    assert (counts["judgments"], counts["already_there"]) == (1, 1)


def test_other_feedback_on_the_same_answers_is_another_persons_and_overwrites_nothing():
    bring_in(ITEM)
    bring_in(changed(lambda item: item.update(preference=[0, 0, 0, 0, 0, 0])))
    first, second = Judgment.objects.order_by("pk")
    assert (first.verdict, second.verdict) == (Verdict.RANKED, Verdict.EQUAL)
    assert first.annotator != second.annotator
    assert Comparison.objects.count() == 1


def test_a_project_that_is_there_keeps_its_own_and_gets_what_is_missing(project: Project, alice: User):
    bring_in(ITEM, project=project.slug)
    keys = set(project.categories.values_list("key", flat=True))
    assert {"untruthful", "missing", "irrelevant", "wrong-grounding", "missing-answer"} <= keys
    assert Judgment.objects.get().comparison.project == project


def test_four_answers_called_equal_are_equal():
    bring_in(changed(lambda item: item.update(preference=[0] * 6)))
    judgment = Judgment.objects.get()
    assert judgment.verdict == Verdict.EQUAL
    assert set(judgment.ranks.values_list("rank", flat=True)) == {1}


def test_an_item_costs_a_bounded_number_of_queries():
    bring_in(ITEM)
    with CaptureQueriesContext(connection) as queries:
        bring_in(changed(lambda item: item.update(question="And coffee?")))
    assert len(queries) <= 60


@pytest.mark.parametrize(
    ("preference", "ranks"),
    [
        ([1, 1, 1, 1, 1, 1], (1, 2, 3, 4)),
        ([2, 2, 2, 2, 2, 2], (4, 3, 2, 1)),
        ([0, 0, 0, 0, 0, 0], (1, 1, 1, 1)),
        ([0, 1, 1, 1, 1, 0], (1, 1, 2, 2)),
        # 1 over 2 and everything else tied: 3 and 4 stay beside 1, and only their ties with 2 break.
        ([1, 0, 0, 0, 0, 0], (1, 2, 1, 1)),
        # 1 over 2 over 3, 1 and 3 tied: the chain decides.
        ([1, 0, 1, 1, 1, 1], (1, 2, 3, 4)),
        # 1 over 2, 2 over 3, 3 over 1: a circle.
        ([1, 2, 1, 1, 1, 1], None),
    ],
)
def test_ranks_follow_the_longest_chain_of_better_answers(preference: list[int], ranks: Any):
    assert ranks_from_pairs(preference) == ranks


def test_every_weak_order_comes_back_from_its_own_pairs():
    for vector in itertools.product(range(1, 5), repeat=4):
        if set(vector) != set(range(1, max(vector) + 1)):
            continue
        pairs = [0 if vector[a] == vector[b] else 1 if vector[a] < vector[b] else 2 for a, b in PAIRS]
        assert ranks_from_pairs(pairs) == vector


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: i.pop("question"), "row 2, field question: This field is missing"),
        (lambda i: i.update(extra=1), "row 2, field extra: This field is not known"),
        (lambda i: i.update({"prediction 3": " "}), "row 2, field prediction 3: The text is empty"),
        (lambda i: i.update(preference=[1, 2, 3, 0, 0, 0]), "field preference: Six numbers"),
        (lambda i: i.update(preference=[1, 2]), "field preference: Six numbers"),
        (lambda i: i.update(preference=[1, 2, 1, 1, 1, 1]), "field preference: .* in a circle"),
        (lambda i: i["feedback"]["errors"][1].update(end=40), "field spans: The span 28–40 does not lie"),
        (lambda i: i["feedback"]["errors"][0].update(start=-1), "field spans: The span -1–27 does not lie"),
        (lambda i: i["feedback"]["errors"][0].update(start=27), "field spans: The span 27–27 does not lie"),
        (lambda i: i["feedback"]["errors"][0].update(start="6"), "A whole number is expected"),
        (lambda i: i["feedback"]["errors"][0].update({"error type": "Rude"}), '"Rude" is not known'),
        (
            lambda i: i["feedback"]["missing-info"][0].update(passage_id=3),
            "no passage 2 with a sentence 1",
        ),
        (
            lambda i: i["feedback"]["missing-info"][0].update(passage_id=0),
            "no passage -1 with a sentence 1",
        ),
        (
            lambda i: i["feedback"]["missing-info"][0].update(sentence_id=[3]),
            "no passage 0 with a sentence 2",
        ),
        (lambda i: i["feedback"]["missing-info"][0].update(sentence_id=[]), "sentence_id: The list is empty"),
        (lambda i: i["passages"].append([]), r"passages\[2\]: The list is empty"),
        (
            lambda i: i["feedback"].update({"corrected-prediction": None}),
            "corrected-prediction: A text is expected",
        ),
        (lambda i: i.update(gold="\x00"), "field gold: Character 0 is NUL"),
    ],
)
def test_a_faulty_item_is_told_by_item_and_field_and_nothing_comes_in(
    change: Callable[[dict[str, Any]], object], message: str
):
    with pytest.raises(ImportErrors, match=message):
        bring_in(ITEM, changed(change))
    assert not Prompt.objects.exists()
    assert not Judgment.objects.exists()


def test_a_dry_run_recognises_a_whole_file_and_writes_nothing(data: Path):
    output = StringIO()
    file = data / "qa_feedback" / "feedback.json"
    call_command("import_judgments", str(file), "--dry-run", stdout=output)
    assert output.getvalue().startswith(
        "Read as qa-feedback. The JSON of github.com/allenai/FineGrainedRLHF.\n"
    )
    assert "preference: read as" in output.getvalue()
    assert not Project.objects.exists()


def test_a_recognised_file_comes_in_as_with_its_format_named(tmp_path: Path):
    path = tmp_path / "feedback.json"
    path.write_text(json.dumps([ITEM]))
    call_command("import_judgments", str(path), stdout=StringIO())
    assert Project.objects.get().slug == "qa-feedback"
    assert Judgment.objects.count() == 1


def test_the_command_tells_what_is_wrong_with_the_file(tmp_path: Path):
    path = tmp_path / "feedback.json"
    for content, message in (
        (b"{", "not JSON"),
        (b"{}", "prediction 1: This field is missing"),
        (b'["\xff"]', "not UTF-8"),
    ):
        path.write_bytes(content)
        with pytest.raises(CommandError, match=message):
            call_command("import_judgments", str(path), "--format", "qa-feedback")
    with pytest.raises(CommandError, match="cannot be read"):
        call_command("import_judgments", str(tmp_path / "absent"), "--format", "qa-feedback")
