"""Keys of imported judgments stay: by them a file that comes in a second time is known."""

from collections.abc import Sequence
from typing import Any

import pytest

from annotation.exchange.item_imports import ImportScene, ItemImport, Occurrences
from annotation.models import Project
from tests.annotation.exchange.formats import test_exports_of_tools as tools
from tests.annotation.exchange.formats.reading import plan_rows, read_by
from tests.annotation.exchange.formats.test_public_sets import SETS

CHAT = [{"role": "user", "content": "Tea? 🫖"}]
WHOLE = {
    "messages": CHAT,
    "context": [{"title": "Tea", "sentences": ["It is hot.", "It is wet."]}],
    "references": ["A drink."],
    "tags": ["drinks"],
    "completions": [
        {"id": "11", "text": "Yes. It is hot.", "source": "alpha", "seed": 0, "finish_reason": "stop"},
        {"id": "12", "text": "No tea.", "source": "beta", "sampling": {"temperature": 0.5}},
        {"id": "13", "text": "Perhaps."},
    ],
    "display_order": ["12", "11", "13"],
    "verdict": "ranked",
    "ranks": {"12": 2, "11": 1},
    "spans": [
        {"completion": "11", "category": "wrong", "start": 0, "end": 4, "quote": "Yes.", "severity": 2},
        {"completion": "12", "category": "Too short!", "start": 0, "end": 2, "quote": "No", "note": "Why?"},
    ],
    "missing": [
        {
            "completion": "11",
            "category": "lacks",
            "text": "Milk.",
            "insert_at": 0,
            "evidence": [{"passage": 0, "sentence": 1}, {"passage": 0, "sentence": None}],
        },
        {"completion": "12", "category": "lacks", "text": "Sugar."},
    ],
    "corrections": [
        {
            "completion": "11",
            "text": "It is hot.",
            "edits": [
                {
                    "start": 0,
                    "end": 5,
                    "quote": "Yes. ",
                    "replacement": "",
                    "span": {"category": "wrong", "start": 0, "end": 4},
                }
            ],
        },
        {
            "completion": "12",
            "text": "No green tea.",
            "edits": [
                {
                    "start": 3,
                    "end": 3,
                    "quote": "",
                    "replacement": "green ",
                    "model": {"seed": 7, "sampling": {"top_p": 0.9}},
                }
            ],
        },
        {"completion": "13", "text": ""},
    ],
    "ratings": [
        {"completion": "11", "criterion": "clear", "scale": "five", "value": 4},
        {"completion": "12", "criterion": "safe", "scale": "thumbs", "value": 0},
    ],
    "critiques": [{"completion": "13", "text": "Undecided."}],
    "demonstration": "Yes, with milk.",
    "comment": "Two of three.",
    "annotator": "3f0c8a52-6c1e-4a64-9a6e-0d5e5b4b0a11",
    "machine": True,
    "active_seconds": 0,
    "created_at": "2026-01-31T09:30:00+00:00",
    "judgment": "99",
    "blind": False,
}
PAIR = {
    "messages": CHAT,
    "completions": [{"id": "1", "text": "Yes."}, {"id": "2", "text": "No."}],
    "verdict": "ranked",
    "ranks": {"1": 2, "2": 1},
    "strength": 3,
}
STEPS = {
    "messages": CHAT,
    "completions": [
        {
            "id": "1",
            "text": "Think.\nTea.",
            "steps": [
                {"kind": "reasoning", "role": "assistant", "start": 0, "body": 0, "end": 6},
                {"kind": "message", "role": "assistant", "start": 7, "body": 7, "end": 11},
            ],
        }
    ],
    "verdict": "not_asked",
    "step_labels": [
        {"completion": "1", "step": 0, "label": "unnecessary"},
        {"completion": "1", "step": 1, "label": "correct"},
    ],
}
LABEL_STUDIO = {
    "data": {"prompt": "Tea?", "text": "Yes. It is hot."},
    "annotations": [
        {
            "completed_by": 3,
            "lead_time": 4.7,
            "created_at": "2026-01-31T09:30:00Z",
            "result": [
                {
                    "id": "a",
                    "type": "labels",
                    "from_name": "marks",
                    "to_name": "text",
                    "meta": {"severity": 2, "text": ["Why?"]},
                    "value": {"start": 0, "end": 4, "text": "Yes.", "labels": ["wrong"]},
                },
                {
                    "id": "b",
                    "type": "rating",
                    "from_name": "clear",
                    "to_name": "text",
                    "value": {"rating": 6},
                },
            ],
        }
    ],
}
ARGILLA = {
    "fields": {"prompt": "Tea?", "response_1": "Yes.", "response_2": "No."},
    "responses": {
        "response_1_marks": [{"user_id": "u1", "value": [{"label": "wrong", "start": 0, "end": 3}]}],
        "quality_response_2": [{"user_id": "u1", "value": 4}],
    },
}
POTATO = {
    "user_id": "ann",
    "displayed_text": "Yes. It is hot.",
    "prompt": "Tea?",
    "label_annotations": {"comments": {"text_box": "Short."}},
    "span_annotations": [{"name": "wrong", "start": 0, "end": 4, "span": "Yes."}],
    "behavioral_data": {"time_string": "Time spent: 0d 0h 1m 5s "},
}
QA_FEEDBACK = {
    "question": "Tea?",
    "passages": [["Tea", "It is hot.", "It is wet."]],
    "gold": "A drink.",
    **{f"prediction {n}": f"Answer {n}." for n in range(1, 5)},
    "feedback": {
        "errors": [{"error type": "Irrelevant", "explanation": "Why?", "start": 0, "end": 6}],
        "missing-info": [{"error type": "Missing-Answer", "passage_id": 1, "sentence_id": [0, 2]}],
        "corrected-prediction": "Answer.",
    },
    "preference": [1, 1, 1, 0, 0, 1],
}
CSV: list[dict[str, Any]] = [
    {
        "judgment": "5",
        "answers": "2",
        "annotator": "ann",
        "machine": "false",
        "verdict": "ranked",
        "strength": "2",
        "seconds": "12",
        "created_at": "2026-01-31T09:30:00+00:00",
        "question": "Tea?",
        "rank": rank,
        "position": position,
        "text": text,
        "rating_clear_seven": "6",
    }
    for rank, position, text in (("1", "2", "Yes."), ("2", "1", "No."))
]
STEPWISE = {"prompt": "Tea?", "completions": ["Boil.", "Pour."], "labels": [True, False]}
FILES: dict[str, list[dict[str, Any]]] = {
    "jsonl": [WHOLE, PAIR, PAIR, STEPS],
    "label-studio": [LABEL_STUDIO],
    "argilla": [ARGILLA],
    "potato": [POTATO],
    "qa-feedback": [QA_FEEDBACK],
    "csv": CSV,
    "stepwise": [STEPWISE],
    "open-webui": [tools.feedback(1, reason="accurate")],
    "langfuse": [tools.trace(1, tools.score("quality", 4, "EVAL", comment="Clear."))],
    **{name: rows for name, (rows, _left_out) in SETS.items()},
}

KEYS = {
    "jsonl": [
        "b9f7f4b6d13054a4a87bef6fea44d05d",
        "dc178587f7255f21bbebeec97278acfc",
        "b9d049cc67885b64849c524a6214d583",
        "d5b166900a415e2ea9afa383b8d1cd09",
    ],
    "label-studio": [
        "8d19ca94fc5f5d05a657836cb02f603c",
    ],
    "argilla": [
        "f1a13e4be05f59f7af46e8f535563cb2",
    ],
    "potato": [
        "694a55bc9ad9598fa3d8a6ec1cff00ac",
    ],
    "qa-feedback": [
        "f0acc35d499b5c9c949d2d2120f93d7d",
    ],
    "csv": [
        "f3b7f9787e3d5df49680b6d7a8d1fd0b",
    ],
    "stepwise": [
        "9fa42444ddfa53e1830fe351a92b1139",
    ],
    "open-webui": [
        "1dff5d06a2455525a451f1b239309897",
    ],
    "langfuse": [
        "85ac31fdeb0d5400b57508625c9d5904",
    ],
    "HelpSteer2": [
        "e670979d56c75d7893e3ff0f7d2cd2bb",
        "0f3f327813da55c2a2ec96cf43323bb0",
        "37018070fdd95fb49d7b58eb15dbc89c",
    ],
    "HelpSteer2 ratings": [
        "5e0ec143afdf5de596ce1491609c660e",
        "3214f5adfe58501aa7d4dece2278ea40",
        "d2a95f50e9a1571a9e8578786830f9e0",
        "38c2a394856a50f7b676da6144bde79c",
        "babf14bbed515841a97cab2a7e434a20",
    ],
    "HelpSteer3": [
        "c5714dc71b0458df9c368db15f2df0ef",
        "85756183b0bd5967ac96ed4ae769d9b0",
        "37018070fdd95fb49d7b58eb15dbc89c",
    ],
    "UltraFeedback": [
        "d06e49ffde3f5ef1a10a00ad2c4c0da9",
    ],
    "PKU-SafeRLHF": [
        "3904784cb2e95c40bcf9cb2577260d00",
    ],
    "summarize-from-feedback": [
        "0372b46e49725f4da0e7118b33384c9e",
        "0266b793079059d0b8d627795b0f2d58",
    ],
    "AlpacaFarm": [
        "151de953d0e3597b9e5f3f176e63875d",
        "35f7a88dd9035e78a61d1ec2a0ae49bb",
    ],
    "LLaMA-Factory": [
        "bb39eb96191858b0bb28ffc70fa7ec97",
    ],
    "MT-Bench": [
        "bfa1b3f7bd905149917aadac461c9f08",
        "b34b2ed9f5a256eab9d211c5a933affc",
    ],
    "Arena 33k": [
        "5334d566204d5d9e9bb20f3f895596e8",
        "f7b5cbe3be0957829419877a09daeab5",
    ],
    "Arena 140k": [
        "c768d74c1d5e515fa9f14572ef5b187a",
    ],
    "OpenAssistant": [
        "add255bb9b0d50d9a4a52b64b33a0fb0",
    ],
}
"""Computed by version 1.0's rule: the keys of the judgments of each file, in order."""


def keys_of(rows: Sequence[dict[str, Any]], **choices: Any) -> list[str]:
    """The keys of the judgments of a file in project 7."""
    scene = ImportScene(project=Project(pk=7), categories={}, criteria={})
    with Occurrences() as occurrences:
        new = ItemImport(scene=scene, format_name="any", occurrences=occurrences, file_import=1)
        items = read_by(list(rows), plan_rows(list(rows), **choices))
        return [key.hex for item in items for key in new._keys(item)]


@pytest.mark.parametrize("name", FILES)
def test_a_judgment_has_the_key_that_it_had_before(name: str):
    left_out = SETS[name][1] if name in SETS else []
    assert keys_of(FILES[name], leave_out=left_out) == KEYS[name]
