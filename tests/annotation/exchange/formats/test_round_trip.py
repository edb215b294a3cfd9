"""Out and in again gives the same rows, in every format that comes in and goes out.

What a format cannot carry it says, and the rows that it does write are the same. `verl`, `trl-sft`,
`openai-messages`, `spans` and `bio` go out alone: prompts without judgments, answers without comparison,
marks without whole texts.
"""

import json
import tempfile
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from annotation.choices import NOT_ORDERED, Verdict
from annotation.exchange.file_exports import Export, scene_of, write_parquet
from annotation.exchange.file_imports import NamesInFile, import_file, scene_for
from annotation.exchange.formats.items import (
    ImportedCompletion,
    ImportedItem,
    ImportedJudgment,
    checked,
    dense,
    ranks_by_place,
    span_at,
)
from annotation.exchange.formats.registry import WRITERS
from annotation.exchange.formats.rows import read_rows
from annotation.exchange.item_imports import ItemImport, Occurrences
from annotation.models import FileImport, Project
from annotation.record.judgment import CorrectionPart, MissingPart, RatingPart

pytestmark = pytest.mark.django_db

# Line breaks of all kinds, what a spreadsheet takes for a formula, quotes, emoji, RTL, combining marks.
PIECES = [
    "tea",
    "=1+1",
    "-",
    "@x",
    "'",
    '"',
    "a,b;c",
    "\r\n",
    "\n",
    "\t",
    "🍵",
    "e\u0301",
    "שלום",
    "👩\u200d🔬",
    "+",
]
texts = st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map("".join).filter(lambda t: t.strip())
EXAMPLES = max(1, settings().max_examples // 4)
"""Number of drawn files, of one to three comparisons each; others in every run."""
NAMES = ["ann", "bob", "cleo"]
PEOPLE = {name: str(uuid.uuid5(uuid.NAMESPACE_DNS, name)) for name in NAMES}


@st.composite
def judgments(draw: st.DrawFn, answers: list[str], annotator: str) -> ImportedJudgment:
    size = len(answers)
    verdicts = [Verdict.CANNOT_JUDGE, Verdict.NOT_ASKED]
    if size > 1:
        verdicts += [Verdict.RANKED, Verdict.RANKED, Verdict.EQUAL, Verdict.BOTH_GOOD, Verdict.BOTH_BAD]
    verdict = draw(st.sampled_from(verdicts))
    ranks: tuple[int, ...] = ()
    if verdict == Verdict.RANKED:
        drawn = draw(st.lists(st.integers(1, 3), min_size=size, max_size=size))
        ranks = dense(drawn if size > 2 or len(set(drawn)) > 1 else [1, 2])
        # A partial ranking: some of three or more have no order.
        rest = draw(st.sets(st.integers(0, size - 1), max_size=size - 1)) if size > 2 else set()
        kept = iter(dense([rank for place, rank in enumerate(ranks) if place not in rest]))
        ranks = tuple(NOT_ORDERED if place in rest else next(kept) for place in range(size))
    elif verdict in (Verdict.EQUAL, Verdict.BOTH_GOOD, Verdict.BOTH_BAD):
        ranks = (1,) * size
    spans = set()
    for place, text in enumerate(answers):
        for key in draw(st.sets(st.sampled_from(["vague", "Wrong-Fact"]))):
            start = draw(st.integers(0, len(text) - 1))
            end = draw(st.integers(start + 1, len(text)))
            spans.add(span_at(place, text, key, start, end, note=draw(texts)))
    rated = draw(st.booleans())
    return checked_judgment(
        answers,
        ImportedJudgment(
            verdict=verdict,
            ranks=ranks_by_place(ranks),
            annotator=PEOPLE[annotator],
            strength=draw(st.none() | st.integers(1, 4)) if size == 2 and verdict == Verdict.RANKED else None,
            comment=draw(st.just("") | texts),
            spans=tuple(sorted(spans, key=lambda s: (s.completion, s.start, s.end, s.category))),
            missing=(MissingPart(completion="0", category="lacks", text="More."),) if rated else (),
            corrections=(CorrectionPart(completion="0", text=draw(texts)),) if draw(st.booleans()) else (),
            ratings=tuple(
                RatingPart(completion=str(n), criterion="clear", scale="seven", value=draw(st.integers(1, 7)))
                for n in range(size)
            )
            if rated
            else (),
            active_seconds=draw(st.none() | st.integers(1, 900)),
            display_order=tuple(draw(st.permutations(range(size)))),
        ),
    )


def checked_judgment(answers: list[str], judgment: ImportedJudgment) -> ImportedJudgment:
    completions = tuple(ImportedCompletion(text=text) for text in answers)
    checked(ImportedItem(messages=[], completions=completions, judgments=(judgment,)))
    return judgment


@st.composite
def items(draw: st.DrawFn) -> list[ImportedItem]:
    imported = []
    for number in range(draw(st.integers(1, 3))):
        answers = draw(st.lists(texts, min_size=1, max_size=4, unique=True))
        people = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True))
        turns = draw(st.lists(texts, max_size=2))
        chat = [f"{number} {draw(texts)}", *(text for turn in turns for text in (turn, draw(texts)))]
        imported.append(
            ImportedItem(
                messages=[
                    {"role": "assistant" if place % 2 else "user", "content": text}
                    for place, text in enumerate(chat)
                ],
                tags=["x"],
                completions=tuple(
                    ImportedCompletion(text=text, source=f"model {place}", seed=place)
                    for place, text in enumerate(answers)
                ),
                judgments=tuple(draw(judgments(answers, annotator)) for annotator in people),
            )
        )
    return imported


def project_with(stored: list[ImportedItem]) -> Project:
    project = Project.objects.create(name="Tea", slug=f"tea-{uuid.uuid4().hex[:12]}")
    names = NamesInFile()
    for item in stored:
        names.add(item)
    scene, _made = scene_for(project=project, names=names)
    record = FileImport.objects.create(project=project, name="x", digest=uuid.uuid4().hex, size=0)
    with Occurrences() as occurrences:
        importer = ItemImport(scene=scene, format_name="test", occurrences=occurrences, file_import=record.pk)
        importer.write(list(enumerate(stored, start=1)))
    return project


def export_to(project: Project, format_name: str, path: Path) -> list[Any]:
    export = Export(project=project, writer=WRITERS[format_name])
    if export.writer.container == "parquet":
        write_parquet(export.row_stream(), export.writer.columns, path)
    else:
        path.write_text("".join(export.text_stream()), encoding="utf-8", newline="")
    return [row for _, row in read_rows(path)] if path.stat().st_size else []


# What belongs to one database, or is not in the format, beside which the rows must be the same.
OWN = {
    "jsonl": {"judgment", "comparison", "prompt", "imported_from", "round", "guideline_version"},
    "csv": {"judgment", "comparison", "prompt", "completion", "split", "round"},
    "label-studio": {"id", "created_at", "judgment"},
    "chatbot-arena": {"question_id"},
}


def without_ids(row: Any, format_name: str) -> Any:
    """The row without what is a database's own; a completion's id becomes its place."""
    places = (
        {c["id"]: f"#{n}" for n, c in enumerate(row.get("completions", []))} if format_name == "jsonl" else {}
    )

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            ignored_keys = OWN.get(format_name, set())
            return {places.get(k, k): plain(v) for k, v in value.items() if k not in ignored_keys}
        if isinstance(value, list):
            return [plain(element) for element in value]
        return places.get(value, value) if isinstance(value, str) else value

    return plain(row)


def spelled(rows: list[Any], format_name: str) -> Counter[str]:
    return Counter(json.dumps(without_ids(row, format_name), sort_keys=True) for row in rows)


@pytest.mark.parametrize(
    "format_name",
    [
        *("jsonl", "csv", "label-studio", "trl-preference", "trl-unpaired", "trl-prm", "openrlhf"),
        *("hh-rlhf", "chatbot-arena", "openai-preference", "llama-factory"),
    ],
)
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stored=items())
def test_out_and_in_again_gives_the_same_rows(format_name: str, stored: list[ImportedItem]):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"x.{WRITERS[format_name].container}"
        out = export_to(project_with(stored), format_name, path)
        if not out:
            return
        second = Project.objects.create(name="Tea", slug=f"tea-{uuid.uuid4().hex[:12]}")
        others = {"trl-prm": "trl-stepwise", **dict.fromkeys(("openrlhf", "llama-factory"), "trl-preference")}
        read_as = others.get(format_name, format_name)
        record = import_file(project=second, path=path)
        assert (record.format, record.errors) == (read_as, [])
        again = export_to(second, format_name, Path(folder) / f"y.{WRITERS[format_name].container}")
    if format_name == "openrlhf":
        # The strength goes out as a margin, which as `margin` stays with the judgment and is no strength.
        out, again = ([{**row, "margin": 0} for row in rows] for rows in (out, again))
    assert spelled(out, format_name) == spelled(again, format_name)


@pytest.mark.parametrize("keys", [("vague", "Wrong-Fact"), ("Wrong-Fact", "vague")])
@pytest.mark.parametrize("known_first", ["vague", "Wrong-Fact"])
def test_marks_of_the_same_words_go_out_in_the_order_in_which_they_were_made(
    keys: tuple[str, str], known_first: str, tmp_path: Path
):
    def item(text: str, *marks: str) -> ImportedItem:
        spans = tuple(span_at(0, "tea", key, 0, 1) for key in marks)
        judgment = ImportedJudgment(verdict=Verdict.CANNOT_JUDGE, annotator=PEOPLE[NAMES[0]], spans=spans)
        return ImportedItem(
            messages=[{"role": "user", "content": text}],
            completions=(ImportedCompletion(text="tea"),),
            judgments=(checked_judgment(["tea"], judgment),),
        )

    project = project_with([item("which is known first", known_first), item("both", *keys)])
    rows = export_to(project, "jsonl", tmp_path / "x.jsonl")
    both = next(row for row in rows if row["messages"][0]["content"] == "both")
    assert tuple(span["category"] for span in both["spans"]) == keys


@settings(max_examples=2 * EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stored=items(), format_name=st.sampled_from(sorted(WRITERS)))
def test_every_judgment_gives_rows_or_is_told_as_dropped(stored: list[ImportedItem], format_name: str):
    dropped = set()
    export = Export(
        project=project_with(stored),
        writer=WRITERS[format_name],
        on_drop=lambda record, what: dropped.add(record["judgment"]),
    )
    scene = scene_of(export.project, None)
    for record in Export(project=export.project, writer=WRITERS["jsonl"]).row_stream():
        before = export.rows
        list(export._rows_of(record, scene))
        assert export.rows > before or record["judgment"] in dropped
