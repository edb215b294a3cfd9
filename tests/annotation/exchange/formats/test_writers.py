"""A judgment in each export format; the expected rows are written out by hand."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from annotation.choices import Verdict
from annotation.exchange.file_exports import Export
from annotation.exchange.formats import registry
from annotation.exchange.formats.registry import WRITERS
from annotation.exchange.formats.rondo_csv import plain, safe
from annotation.exchange.formats.spans import tokens_of, words
from annotation.exchange.formats.writers import Dropped, Scene, Writer, step_granularity
from annotation.models import Project, User
from tests import factories
from tests.refusals import refused

SCENE = Scene(slug="tea", polarities={"vague": "error", "witty": "merit"}, criteria=())
ASKED = [{"role": "user", "content": "What is tea?"}]


def record(*texts: str, ranks: tuple[int, ...] = (), verdict: str = "ranked", **more: Any) -> dict[str, Any]:
    """A record as `exchange.records` gives it, with answers "1", "2", …"""
    ids = [str(number) for number in range(1, len(texts) + 1)]
    return {
        "judgment": "9",
        "comparison": "8",
        "round": 1,
        "prompt": "7",
        "split": "train",
        "messages": ASKED,
        "context": [],
        "references": [],
        "tags": [],
        "completions": [{"id": pk, "text": text, "source": "m"} for pk, text in zip(ids, texts, strict=True)],
        "annotator": "ann",
        "machine": False,
        "display_order": ids,
        "verdict": verdict,
        "ranks": {pk: rank for pk, rank in zip(ids, ranks, strict=False) if rank},
        "strength": None,
        "comment": "",
        "spans": [],
        "missing": [],
        "corrections": [],
        "ratings": [],
        "critiques": [],
        "demonstration": None,
        "active_seconds": None,
        "created_at": "2026-11-22T05:00:00+00:00",
        **more,
    }


def mark(category: str, start: int, end: int, text: str, completion: str = "1") -> dict[str, Any]:
    quote = text[start:end]
    place = {"start": start, "end": end, "quote": quote}
    return {"completion": completion, "category": category, **place, "severity": None, "note": ""}


def written(
    format_name: str, judgment_record: dict[str, Any], scene: Scene = SCENE
) -> tuple[list[Any], list[Dropped]]:
    results = list(WRITERS[format_name].rows(judgment_record, scene))
    rows = [row for row in results if not isinstance(row, Dropped)]
    return rows, [row for row in results if isinstance(row, Dropped)]


def assistant_turn(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def test_a_ranking_with_a_tie_gives_its_decided_pairs_and_names_the_tie():
    rows, dropped = written("trl-preference", record("a", "b", "c", ranks=(2, 1, 2)))
    assert [(row["chosen"], row["rejected"]) for row in rows] == [
        (assistant_turn("b"), assistant_turn("a")),
        (assistant_turn("b"), assistant_turn("c")),
    ]
    assert dropped == [Dropped("tie with completion 3", "1")]


@pytest.mark.parametrize("verdict", [v for v in Verdict.values if v != "ranked"])
def test_a_verdict_without_a_winner_is_told_and_never_a_pair(verdict: str):
    ranks = () if verdict in ("cannot_judge", "not_asked") else (1, 1)
    rows, dropped = written("trl-preference", record("a", "b", ranks=ranks, verdict=verdict))
    assert rows == []
    assert len(dropped) == 1


def test_both_bad_is_two_undesirable_answers_and_equal_is_neither():
    rows, _ = written("trl-unpaired", record("a", "b", ranks=(1, 1), verdict="both_bad"))
    assert [(row["completion"], row["label"]) for row in rows] == [
        (assistant_turn("a"), False),
        (assistant_turn("b"), False),
    ]
    rows, dropped = written("trl-unpaired", record("a", "b", ranks=(1, 1), verdict="equal"))
    assert (rows, [d.reason for d in dropped]) == ([], ["equal: neither is better"] * 2)


def test_the_middle_of_a_ranking_is_neither_desirable_nor_not():
    rows, dropped = written("trl-unpaired", record("a", "b", "c", ranks=(1, 2, 3)))
    assert [row["label"] for row in rows] == [True, False]
    assert dropped == [Dropped("neither the best nor the worst of the ranking", "2")]


def test_a_partial_ranking_gives_pairs_with_what_is_below_and_names_what_it_does_not_order():
    partial = record("a", "b", "c", "d", ranks=(0, 1, 0, 2))
    rows, dropped = written("trl-preference", partial)
    assert [(row["chosen"], row["rejected"]) for row in rows] == [
        (assistant_turn(better), assistant_turn(worse))
        for better, worse in (("b", "a"), ("d", "a"), ("b", "c"), ("b", "d"), ("d", "c"))
    ]
    assert dropped == [Dropped("not ordered against completion 3", "1")]
    votes, dropped = written("chatbot-arena", partial)
    assert [vote["winner"] for vote in votes] == ["model_b", "model_b", "model_a", "model_a", "model_b"]
    assert dropped == [Dropped("not ordered against completion 3", "1")]


def test_of_a_partial_ranking_the_best_is_desirable_and_nothing_is_undesirable():
    rows, dropped = written("trl-unpaired", record("a", "b", "c", "d", ranks=(0, 1, 0, 2)))
    assert [(row["completion"], row["label"]) for row in rows] == [(assistant_turn("b"), True)]
    below = "not ordered: a partial ranking has it below all ranked ones"
    middle = "neither the best nor the worst of the ranking"
    assert dropped == [Dropped(below, "1"), Dropped(below, "3"), Dropped(middle, "4")]
    # One rank alone: the best is known all the same.
    rows, _ = written("trl-unpaired", record("a", "b", "c", ranks=(0, 0, 1)))
    assert [(row["completion"], row["label"]) for row in rows] == [(assistant_turn("c"), True)]
    rows, _ = written("trl-sft", record("a", "b", "c", ranks=(0, 0, 1)))
    assert [row["completion"] for row in rows] == [assistant_turn("c")]


def test_a_table_leaves_the_rank_of_what_is_not_ordered_empty():
    rows, _ = written("csv", record("a", "b", "c", ranks=(0, 1, 0)))
    assert [row["rank"] for row in rows] == [None, 1, None]


def test_what_a_person_wrote_goes_before_what_they_preferred():
    judgment_record = record("a", "b", ranks=(1, 2))
    assert [row["completion"] for row in written("trl-sft", judgment_record)[0]] == [assistant_turn("a")]
    corrected = {
        **judgment_record,
        "corrections": [{"completion": "2", "text": "c", "edits": []}],
        "demonstration": "d",
    }
    assert [row["completion"] for row in written("trl-sft", corrected)[0]] == [
        assistant_turn("d"),
        assistant_turn("c"),
    ]


def test_a_line_that_an_error_touches_is_a_wrong_step_and_praise_is_none():
    text = "Tea is hot.\n\n  It is red.\nEnd."
    marks = [mark("vague", 14, 18, text), mark("witty", 0, 3, text)]
    rows, dropped = written("trl-prm", record(text, "other", ranks=(1, 2), spans=marks))
    assert rows == [
        {
            "prompt": "What is tea?",
            "completions": ["Tea is hot.", "It is red.", "End."],
            # "  It " is 13 to 18: its last three characters are of the second line.
            "labels": [True, False, True],
        }
    ]
    assert [dropped_row.completion for dropped_row in dropped] == ["2"]


def test_a_paragraph_is_cut_into_the_segments_by_which_marks_are_rewarded():
    text = "Tea is hot, and red. Dr. Li drinks it!  It is 3.5 years old."
    judgment_record = record(text, spans=[mark("vague", 12, 19, text)])
    by_sentence, _dropped = written("trl-prm", judgment_record)
    assert by_sentence[0]["completions"] == [
        "Tea is hot, and red.",
        "Dr. Li drinks it!",
        "It is 3.5 years old.",
    ]
    assert by_sentence[0]["labels"] == [False, True, True]
    finer, _dropped = written("trl-prm", judgment_record, replace(SCENE, step_granularity="sub-sentence"))
    assert finer[0]["completions"][:2] == ["Tea is hot,", "and red."]
    assert finer[0]["labels"] == [True, False, True, True]


@pytest.mark.parametrize(
    ("granularities", "expected"),
    [
        ({}, "sentence"),
        ({"vague": "whole"}, "sentence"),
        ({"vague": "sentence", "odd": "sub-sentence"}, "sub-sentence"),
        # Praise makes no step wrong.
        ({"vague": "sentence", "witty": "sub-sentence"}, "sentence"),
    ],
)
def test_steps_are_as_fine_as_the_finest_error_category(granularities: dict[str, str], expected: str):
    assert step_granularity(granularities, {"witty": "merit"}) == expected


@pytest.mark.django_db
def test_the_manifest_says_how_steps_were_cut(project: Project, alice: User, tmp_path: Path):
    project.categories.update(granularity="sentence")
    factories.make_judgment(factories.make_comparison(project), alice)
    path = tmp_path / "x.jsonl"
    call_command("export_judgments", "--format", "trl-prm", "--output", str(path), stderr=StringIO())
    manifest = json.loads((tmp_path / "x.jsonl.manifest.json").read_text())
    assert manifest["steps"]["of other marked completions"] == "sentence"
    call_command("export_judgments", "--format", "trl-sft", "--output", str(path), stderr=StringIO())
    assert "steps" not in json.loads((tmp_path / "x.jsonl.manifest.json").read_text())


def test_bio_labels_are_those_of_words_and_marks_that_share_one_lie_in_layers():
    text = "Hot tea, 🍵 iced tea"
    marks = [mark("vague", 0, 7, text), mark("odd", 4, 8, text), mark("vague", 11, 15, text)]
    rows, dropped = written("bio", record(text, ranks=(1,), spans=marks))
    assert dropped == []
    assert rows[0]["tokens"] == ["Hot", "tea", ",", "🍵", "iced", "tea"]
    assert rows[0]["offsets"][3] == [9, 10]
    assert [row["labels"] for row in rows] == [
        ["B-vague", "I-vague", "O", "O", "B-vague", "O"],
        ["O", "B-odd", "I-odd", "O", "O", "O"],
    ]
    assert [row["layer"] for row in rows] == [1, 2]


def test_bio_labels_are_those_of_a_tokenizer_where_one_is_given(tmp_path: Path):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("e", "merged_with_previous")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = "🍵 here be tea"
    scene = Scene(slug="tea", tokens=tokens_of(tmp_path))
    rows, _ = written("bio", record(text, ranks=(1,), spans=[mark("vague", 2, 6, text)]), scene)
    assert rows[0]["tokens"] == ["🍵 he", "re", " be", " te", "a"]
    assert rows[0]["labels"] == ["B-vague", "I-vague", "O", "O", "O"]
    assert words(text) != rows[0]["offsets"]


def test_marks_go_out_in_code_points_with_their_quote():
    text = "🍵 hot"
    rows, _ = written("spans", record(text, ranks=(1,), spans=[mark("vague", 2, 5, text)]))
    assert rows[0]["spans"] == [
        {"category": "vague", "start": 2, "end": 5, "quote": "hot", "severity": None, "note": ""}
    ]


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1", "@x", "\tx", "\rx", "'x", "''"])
def test_a_cell_is_no_formula_and_comes_back_as_it_was(cell: str):
    assert safe(cell)[0] == "'"
    assert plain(safe(cell)) == cell
    assert plain(safe("tea")) == safe("tea") == "tea"


@pytest.mark.django_db
def test_a_prompt_that_two_people_judged_goes_to_verl_once(
    project: Project, alice: User, bob: User, tmp_path: Path
):
    project.overlap = 2
    project.save()
    comparison = factories.make_comparison(project, ["Yes.", "No."])
    for person in (alice, bob):
        factories.make_judgment(comparison, person)
    path = tmp_path / "x.parquet"
    call_command("export_judgments", "--format", "verl", "--output", str(path), stderr=StringIO())
    import pyarrow.parquet

    (row,) = pyarrow.parquet.read_table(path).to_pylist()
    assert (row["data_source"], row["reward_model"]) == ("rondo/tea", {"style": "model", "ground_truth": ""})


@pytest.mark.django_db
def test_beside_a_file_stands_what_was_dropped_and_why(project: Project, alice: User, tmp_path: Path):
    judgment = factories.make_judgment(
        factories.make_comparison(project), alice, (), verdict=Verdict.BOTH_BAD
    )
    path = tmp_path / "x.jsonl"
    call_command("export_judgments", "--format", "trl-preference", "--output", str(path), stderr=StringIO())
    manifest = json.loads((tmp_path / "x.jsonl.manifest.json").read_text())
    assert (manifest["judgments"], manifest["rows"]) == (1, 0)
    assert manifest["dropped"] == {"both bad: neither is better": 1}
    assert json.loads((tmp_path / "x.jsonl.dropped.jsonl").read_text()) == {
        "judgment": str(judgment.pk),
        "reason": "both bad: neither is better",
    }


@pytest.mark.django_db
def test_the_folder_is_read_by_datasets_and_its_card_counts(project: Project, alice: User, tmp_path: Path):
    datasets = pytest.importorskip("datasets")
    for split in ("train", "held-out"):
        prompt = factories.make_prompt(project, f"Tea of {split}?", split=split)
        factories.make_judgment(factories.make_comparison(project, prompt=prompt), alice)
    folder = tmp_path / "set"
    arguments = ["export_judgments", "--format", "dataset", "--output", str(folder)]
    call_command(*arguments, stderr=StringIO())
    cache = str(tmp_path / "cache")
    splits = datasets.load_dataset(str(folder), "preference", cache_dir=cache)
    assert {name: rows.num_rows for name, rows in splits.items()} == {"train": 1, "test": 1}
    assert splits["test"][0]["prompt"] == [{"role": "user", "content": "Tea of held-out?"}]
    whole = datasets.load_dataset(str(folder), "judgments", cache_dir=cache)
    assert whole["train"][0]["verdict"] == "ranked"
    assert "| preference | train | 1 | 1 | nothing |" in (folder / "README.md").read_text()
    with refused("output_exists", CommandError):
        call_command(*arguments, stderr=StringIO())


def test_a_table_for_people_gives_each_response_the_letter_that_its_annotator_saw():
    judgment_record = record(
        "a", "b", "c", ranks=(2, 1, 2), display_order=["3", "1", "2"], comment="C is best."
    )
    rows, _dropped = written("csv", judgment_record)
    assert [(row["text"], row["position"], row["letter"]) for row in rows] == [
        ("a", 2, "B"),
        ("b", 3, "C"),
        ("c", 1, "A"),
    ]


@pytest.mark.django_db
def test_a_format_of_another_package_goes_out_by_its_name(
    monkeypatch: pytest.MonkeyPatch, project: Project, alice: User
):
    monkeypatch.setattr(registry, "WRITERS", dict(registry.WRITERS))
    registry.register(
        Writer(
            name="verdicts",
            sentence="The verdicts alone.",
            container="json",
            rows=lambda record, scene: iter([{"verdict": record["verdict"]}]),
        )
    )
    factories.make_judgment(factories.make_comparison(project), alice)
    export = Export(project=project, writer=registry.WRITERS["verdicts"])
    assert "".join(export.text_stream()) == '[\n{"verdict": "ranked"}\n]\n'
