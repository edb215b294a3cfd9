"""Files of the shapes of public sets come in, go out in every format that carries them, and come in equal."""

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from annotation.choices import Verdict
from annotation.exchange.file_imports import import_file
from annotation.exchange.formats.registry import WRITERS
from annotation.models import Judgment, Project
from tests.annotation.exchange.formats import test_exports_of_tools as tools
from tests.annotation.exchange.formats.test_declared_columns import ARENA
from tests.annotation.exchange.formats.test_nested_verdicts import talk
from tests.annotation.exchange.formats.test_round_trip import export_to, spelled

pytestmark = pytest.mark.django_db

PARTS = [{"type": "text", "text": "Tea?", "image": None, "mimeType": None}]
RATED = {aspect: {"Rating": "4", "Rationale": "So."} for aspect in ("helpfulness", "honesty", "truthfulness")}
SAFE = {
    "prompt": "Tea?",
    "response_0": "Yes.",
    "response_1": "No.",
    "prompt_source": "red",
    "response_0_source": "alpha",
    "response_1_source": "beta",
    "is_response_0_safe": True,
    "is_response_1_safe": False,
    "response_0_severity_level": 0,
    "response_1_severity_level": 2,
    "response_0_sha256": "a1",
    "response_1_sha256": "b2",
    "response_0_harm_category": {"Privacy": False},
    "response_1_harm_category": {"Privacy": True},
    "better_response_id": 1,
    "safer_response_id": 0,
}
REPLIES = [
    {"message_id": f"a{rank}", "role": "assistant", "text": text, "rank": rank, "replies": [], "lang": "en"}
    for rank, text in ((1, "No."), (0, "Yes."))
]
SETS: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "HelpSteer2": (
        [
            {
                "split": "train",
                "prompt": f"Tea {strength}?",
                "response_1": "Yes.",
                "response_2": "No.",
                "preference_strength": strength,
                "preference_statement": "Because.",
                "preference_elaboration": "It is so.",
            }
            for strength in (-2, 3, 0)
        ],
        [],
    ),
    "HelpSteer2 ratings": (
        [
            {
                "prompt": f"Tea {n}?",
                "response": "Yes.",
                "helpfulness": n,
                "correctness": 4 - n,
                "coherence": 4,
            }
            for n in range(5)
        ],
        [],
    ),
    "HelpSteer3": (
        [
            {
                "domain": "general",
                "language": "english",
                "context": [{"role": "user", "content": f"Tea {preference}?"}],
                "response1": "Yes.",
                "response2": "No.",
                "overall_preference": preference,
                "individual_preference": [{"score": preference, "reasoning": "r"}],
            }
            for preference in (-3, 1, 0)
        ],
        [],
    ),
    "UltraFeedback": (
        [
            {
                "source": "evol",
                "instruction": "Tea?",
                "models": ["alpha", "beta"],
                "completions": [
                    {"model": model, "response": text, "annotations": RATED, "critique": "Fine."}
                    for model, text in (("alpha", "Yes."), ("beta", "No."))
                ],
                "correct_answers": ["A drink."],
                "incorrect_answers": ["None"],
            }
        ],
        [],
    ),
    "PKU-SafeRLHF": ([SAFE], ["safer_response_id"]),
    "summarize-from-feedback": ([tools.summaries(0), tools.summaries(1) | {"worker": "w2"}], []),
    "AlpacaFarm": (
        [
            {"instruction": "Tip", "input": given, "output_1": "Yes.", "output_2": "No.", "preference": best}
            for given, best in (("Tea", 1), ("Eggs", 2))
        ],
        [],
    ),
    "LLaMA-Factory": (
        [
            {
                "conversations": [{"from": "human", "value": "Tea?"}],
                "chosen": {"from": "gpt", "value": "Yes."},
                "rejected": {"from": "gpt", "value": "No."},
                "system": "Be brief.",
            }
        ],
        [],
    ),
    "MT-Bench": (
        [
            {
                "question_id": 81,
                "model_a": "alpha",
                "model_b": "beta",
                "winner": winner,
                "judge": "expert_3",
                "conversation_a": talk("A"),
                "conversation_b": talk("B"),
                "turn": number,
            }
            for number, winner in ((1, "model_a"), (2, "model_b"))
        ],
        [],
    ),
    "Arena 33k": ([ARENA, {**ARENA, "question_id": "r", "judge": "u2", "winner": "tie (bothbad)"}], []),
    "Arena 140k": (
        [
            {
                "id": "u",
                "model_a": "alpha",
                "model_b": "beta",
                "winner": "both_bad",
                "evaluation_session_id": "s",
                "evaluation_order": 1,
                "conversation_a": [
                    {"role": "user", "content": PARTS},
                    {"role": "assistant", "content": "Yes."},
                ],
                "conversation_b": [
                    {"role": "user", "content": PARTS},
                    {"role": "assistant", "content": "No."},
                ],
                "full_conversation": [],
                "conv_metadata": {"sum_assistant_a_tokens": 3},
                "category_tag": {"math_v0.1": {"math": False}},
                "language": "en",
                "is_code": False,
                "timestamp": "2025-05-01T10:00:00+00:00",
            }
        ],
        [],
    ),
    "OpenAssistant": (
        [
            {
                "message_tree_id": "t",
                "tree_state": "ready_for_export",
                "prompt": {"message_id": "t", "role": "prompter", "text": "Tea?", "replies": REPLIES},
            }
        ],
        [],
    ),
}
BEST = {
    # The text that wins each vote, by hand; none where neither does.
    "HelpSteer2": ["No.", "Yes.", ""],
    "HelpSteer3": ["No.", "Yes.", ""],
    "PKU-SafeRLHF": ["No."],
    "summarize-from-feedback": ["Coffee.", "Tea was had."],
    "AlpacaFarm": ["No.", "Yes."],
    "LLaMA-Factory": ["Yes."],
    "MT-Bench": ["A one", "B two"],
    "Arena 33k": ["", "Yes."],
    "Arena 140k": [""],
    "OpenAssistant": ["Yes."],
}
FORMATS = ("jsonl", "csv", "label-studio", "chatbot-arena", "trl-preference", "trl-unpaired", "llama-factory")


def imported(name: str, folder: Path) -> Project:
    rows, leave_out = SETS[name]
    project = Project.objects.create(name=name, slug=f"set-{uuid.uuid4().hex[:12]}")
    path = folder / "set.json"
    path.write_text(json.dumps(rows))
    import_file(project=project, path=path, leave_out=leave_out)
    return project


@pytest.mark.parametrize("name", sorted(BEST))
def test_the_right_text_wins(name: str, tmp_path: Path):
    project = imported(name, tmp_path)
    judgments = Judgment.objects.filter(comparison__project=project).prefetch_related("ranks__completion")
    winners = []
    for judgment in judgments:
        best = [each.completion.text for each in judgment.ranks.all() if each.rank == 1]
        winners.append(best[0] if judgment.verdict == Verdict.RANKED else "")
    assert sorted(winners) == sorted(BEST[name])


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("name", sorted(SETS))
def test_a_public_set_goes_out_and_comes_in_equal(name: str, format_name: str, tmp_path: Path):
    path = tmp_path / f"out.{WRITERS[format_name].container}"
    first = export_to(imported(name, tmp_path), format_name, path)
    if not first:
        # UltraFeedback's judge is a program, which goes out only where that is asked for.
        assert name == "UltraFeedback" or format_name not in ("jsonl", "csv", "label-studio")
        return
    second = Project.objects.create(name="Again", slug=f"again-{uuid.uuid4().hex[:12]}")
    record = import_file(project=second, path=path)
    assert record.errors == []
    again = export_to(second, format_name, tmp_path / f"again.{WRITERS[format_name].container}")
    shown = [
        # The annotator of the other database keeps a pseudonym there; who had none gets another here.
        spelled([{**row, "annotator": "", "judge": "", "meta": ""} for row in rows], format_name)
        for rows in (first, again)
    ]
    assert shown[0] == shown[1]
