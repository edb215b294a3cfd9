"""Preference files for LLaMA-Factory and axolotl, on the shapes of their demos, with all parts of prompts."""

import json
from pathlib import Path
from typing import Any

import pytest

from annotation.choices import Verdict
from annotation.exchange.file_imports import import_file
from annotation.models import Comparison, Project
from tests.annotation.exchange.formats.reading import SAMPLES, account_of, ranks_of, read_file
from tests.annotation.exchange.formats.test_round_trip import export_to

HUMAN = {"from": "human", "value": "Tea?"}
USER = {"role": "user", "content": "Tea?"}


def turn(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize("pair", SAMPLES["pairs"].values(), ids=SAMPLES["pairs"])
def test_a_pair_of_a_training_file_comes_in_with_its_whole_prompt(pair: dict[str, Any]):
    (item,) = read_file([pair["row"]], "trl-preference")
    assert [message["content"] for message in item.messages] == pair["messages"]
    assert [completion.text for completion in item.completions] == ["Yes.", "No."]
    assert (item.judgments[0].verdict, ranks_of(item.judgments[0])) == (Verdict.RANKED, (1, 2))


@pytest.mark.parametrize("name", ["label", "kto_tag"])
def test_a_labelled_chat_for_kto_is_a_thumb_on_its_last_answer(name: str):
    rows = [
        {"messages": [{**USER, "content": f"Tea {n}?"}, turn("Yes.")], name: label}
        for n, label in enumerate((True, False))
    ]
    items = read_file(rows, "trl-unpaired")
    assert [item.judgments[0].ratings[0].value for item in items] == [1, 0]
    assert [completion.text for item in items for completion in item.completions] == ["Yes.", "Yes."]


def test_tools_of_a_pair_are_kept_as_metadata():
    tools = json.dumps([{"name": "search"}])
    row = {
        "conversations": [HUMAN],
        "chosen": {"from": "gpt", "value": "Yes."},
        "rejected": {"from": "gpt", "value": "No."},
        "tools": tools,
    }
    assert account_of([row])["tools"] == "kept as metadata (1 row)"
    (item,) = read_file([row], "trl-preference")
    assert item.metadata == {"tools": tools}


@pytest.mark.django_db
@pytest.mark.parametrize("format_name", ["jsonl", "csv"])
def test_metadata_goes_out_and_comes_in_again(format_name: str, project: Project, tmp_path: Path):
    rows = [
        {
            "prompt": f"Tea {number}?",
            "answer_1": "Yes.",
            "answer_2": "No.",
            "winner": "answer_1",
            "domain": "drinks",
            "source_row": {"page": number},
        }
        for number in (1, 2)
    ]
    path = tmp_path / "votes.json"
    path.write_text(json.dumps(rows))
    import_file(project=project, path=path)
    out = tmp_path / f"out.{format_name}"
    first = export_to(project, format_name, out)
    second = Project.objects.create(name="Again", slug="again")
    import_file(project=second, path=out)
    kept = [
        sorted(
            json.dumps(metadata, sort_keys=True)
            for metadata in Comparison.objects.filter(project=each).values_list("metadata", flat=True)
        )
        for each in (project, second)
    ]
    expected = [{"domain": "drinks", "source_row": {"page": number}} for number in (1, 2)]
    assert kept[0] == kept[1] == [json.dumps(metadata) for metadata in expected]
    again = export_to(second, format_name, tmp_path / f"again.{format_name}")
    assert [row["metadata"] for row in first] == [row["metadata"] for row in again]
