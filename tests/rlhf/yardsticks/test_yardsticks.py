"""External yardsticks: files as published, figures worked by hand, and the command on a tiny reward model."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.rlhf.methods.test_methods import spec_of
from tests.rlhf.model.test_backbone import disturb
from training.contract import ContractError
from training.contract.methods.reward import RewardSettings
from training.rlhf.loop.run import save_checkpoint
from training.rlhf.methods.reward import RewardModelling
from training.rlhf.model.backbone import Backbone
from training.rlhf.rewards.protocol import Chat, Reference, Score, ScoredSegment
from training.rlhf.yardsticks import (
    YARDSTICKS,
    ScoredItem,
    YardstickItem,
    accuracy_figures,
    main,
    measure,
    read_items,
    reward_bench_figures,
    rm_bench_figures,
    scored_items,
    ties_figure,
)

SETTINGS = RewardSettings(max_tokens=128)
REWARD_BENCH = {
    "id": "7",
    "prompt": "Name a metal.",
    "chosen": ["Iron."],
    "rejected": ["Wood.", "Milk.", "Air."],
    "subset": "Factuality",
}
RM_BENCH = {
    "id": "3",
    "prompt": "Why?",
    "chosen": ["a", "aa", "aaa"],
    "rejected": ["b", "bb", "bbb"],
    "domain": "safety-refuse",
}
PPE = {
    "question_id": "q",
    "winner": "model_b",
    "prompt": "Hello",
    "response_1": "one",
    "response_2": "two",
    "language": "German",
}
LLMBAR = {"input": "Name a metal.", "output_1": "Iron.", "output_2": "Wood, of course.", "label": 1}
JUDGEBENCH = {
    "pair_id": "p",
    "source": "mmlu-pro-computer science",
    "question": "2 + 2?",
    "response_A": "Five.",
    "response_B": "Four.",
    "label": "B>A",
}
ALPACA = {"instruction": "Say", "input": "it", "output_1": "one", "output_2": "two", "preference": 1}


def written(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def items_of(name: str, path: Path) -> list[YardstickItem]:
    return read_items(path, YARDSTICKS[name].reader)


# ── Files ─────────────────────────────────────────────────────────────────────────────


def test_each_set_is_read_in_the_fields_of_its_authors(tmp_path: Path):
    [item] = items_of("reward-bench-2", written(tmp_path / "a.jsonl", REWARD_BENCH))
    assert (item.subset, item.chosen, len(item.rejected)) == ("Factuality", ("Iron.",), 3)
    [item] = items_of("rm-bench", written(tmp_path / "b.jsonl", RM_BENCH))
    assert (item.subset, item.chosen, item.rejected) == ("safety", ("a", "aa", "aaa"), ("b", "bb", "bbb"))
    [item] = items_of("ppe-preference", written(tmp_path / "c.jsonl", PPE, PPE | {"winner": "tie (bothbad)"}))
    assert (item.subset, item.chosen, item.rejected) == ("German", ("two",), ("one",))
    ties = [ALPACA | {"preference": value} for value in (0, 1.5, None)]
    [item] = items_of("alpaca-pairs", written(tmp_path / "d.jsonl", *ties, ALPACA))
    assert (item.chosen, item.rejected) == (("one",), ("two",))
    assert [turn.content for turn in item.prompt] == ["Say\n\nit"]


def test_llmbar_and_judgebench_name_the_better_of_two(tmp_path: Path):
    [item] = items_of("llmbar", written(tmp_path / "a.jsonl", LLMBAR))
    assert (item.subset, item.chosen, item.rejected) == ("all", ("Iron.",), ("Wood, of course.",))
    whole = {"subset": "natural", "prompt": "Name it.", "response_a": "x", "response_b": "y", "label": "b"}
    [item] = items_of("llmbar", written(tmp_path / "b.jsonl", whole))
    assert (item.subset, item.chosen, item.rejected) == ("natural", ("y",), ("x",))
    [item] = items_of("judgebench", written(tmp_path / "c.jsonl", JUDGEBENCH))
    assert (item.name, item.subset, item.chosen, item.rejected) == ("p", "mmlu-pro", ("Four.",), ("Five.",))
    for name, row in (("llmbar", LLMBAR | {"label": 3}), ("judgebench", JUDGEBENCH | {"label": "A=B"})):
        with pytest.raises(ContractError, match="row 1: field 'label' is"):
            items_of(name, written(tmp_path / "d.jsonl", row))


def test_each_figure_stands_beside_what_the_longer_response_reaches(tmp_path: Path):
    """By hand: of three items the right response is the longer one in one, equal in one."""
    rows = [
        LLMBAR,
        LLMBAR | {"output_2": "Tin.", "label": 1},
        LLMBAR | {"output_2": "Zinc.", "label": 2},
    ]

    def reward(
        prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> list[Score]:
        return [Score(value=float(text == "Iron.")) for text in completions]

    result = measure(YARDSTICKS["llmbar"], reward, written(tmp_path / "a.jsonl", *rows))
    assert result["figures"]["all"]["value"] == pytest.approx(2 / 3)
    assert result["longer"] == {"all": pytest.approx(1 / 3)}


def test_a_file_may_be_json_lines_a_list_gzip_or_parquet(tmp_path: Path):
    rows = [REWARD_BENCH, REWARD_BENCH | {"id": "8"}]
    lines = "\n".join(map(json.dumps, rows))
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "b.json").write_text(json.dumps(rows))
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "d.parquet")
    read = [items_of("reward-bench-2", path) for path in sorted(tmp_path.iterdir())]
    assert read[0] == read[1] == read[2] == read[3]
    assert [item.name for item in read[0]] == ["7", "8"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "rm-bench",
            json.dumps(REWARD_BENCH),
            "set.jsonl: row 1: fields 'chosen' and 'rejected' need 3 styles",
        ),
        (
            "rm-bench",
            json.dumps({"prompt": "x"}),
            "row 1: field 'chosen' is missing; is it a file of another set",
        ),
        ("ppe-preference", json.dumps(PPE | {"winner": "x"}), "row 1: field 'winner' is 'x'"),
        ("reward-bench-2", json.dumps(REWARD_BENCH | {"chosen": "Iron."}), "'chosen' must be a list"),
        ("alpaca-pairs", json.dumps(ALPACA | {"preference": 0}), "holds no item with a preference"),
        ("alpaca-pairs", "not json", "set.jsonl is neither JSON nor JSON Lines"),
        ("alpaca-pairs", "[1]", "row 1: "),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_by_row_and_field(
    name: str, content: str, message: str, tmp_path: Path
):
    (tmp_path / "set.jsonl").write_text(content)
    with pytest.raises(ContractError) as error:
        items_of(name, tmp_path / "set.jsonl")
    assert message in str(error.value)


# ── Figures ───────────────────────────────────────────────────────────────────────────


def scored(name: str, subset: str, chosen: Sequence[float], rejected: Sequence[float]) -> ScoredItem:
    item = YardstickItem(
        name=name,
        subset=subset,
        prompt=(),
        chosen=("",) * len(chosen),
        rejected=("",) * len(rejected),
    )
    return ScoredItem(item=item, chosen=tuple(chosen), rejected=tuple(rejected))


def test_a_right_response_must_score_above_every_wrong_one():
    figures = accuracy_figures(
        [
            scored("1", "a", [1.0], [0.9, 0.5]),
            # An equal score is no win.
            scored("2", "a", [1.0], [1.0, 0.5]),
            scored("3", "b", [2.0], [0.0]),
            scored("4", "b", [2.0], [3.0]),
        ]
    )
    assert {name: figure.value for name, figure in figures.items()} == {"all": 0.5, "a": 0.5, "b": 0.5}
    # Wilson's interval of 2 of 4.
    assert (figures["all"].low, figures["all"].high) == pytest.approx((0.1500, 0.8500), abs=1e-4)


def test_ties_reward_right_answers_that_lie_together_above_the_wrong_ones():
    ref, tied = scored("ref:1", "Ties", [3.0], [1.0]), scored("tied:1", "Ties", [3.0, 2.5], [1.0])
    # Both accurate; spread 0.5 below the margins 2 and 1.5: all four parts, and tanh(1.5 / 0.5 − 1).
    assert ties_figure([ref, tied]).value == pytest.approx(1 + 0.01 * math.tanh(2))
    # Right answers further apart than from the wrong ones: accurate, and nothing else.
    wide = scored("tied:1", "Ties", [9.0, 2.0], [1.0])
    assert ties_figure([ref, wide]).value == pytest.approx(0.6 + 0.01 * math.tanh(1 / 7 - 1))
    # The reference alone is missed: 0.3 of its accuracy, and the hard share.
    missed = scored("ref:1", "Ties", [0.0], [1.0])
    assert ties_figure([missed, tied]).value == pytest.approx(0.3 + 0.2 + 0.01 * math.tanh(-1 / 0.5 - 1))
    # No spread at all: the limit of tanh.
    flat = scored("tied:1", "Ties", [2.0, 2.0], [1.0])
    assert ties_figure([ref, flat]).value == pytest.approx(1.01)


def test_reward_bench_is_the_mean_of_its_subsets_however_large_they_are():
    figures = reward_bench_figures(
        [
            scored("1", "Math", [1.0], [0.0, 0.0, 0.0]),
            scored("2", "Math", [1.0], [0.0, 0.0, 0.0]),
            scored("3", "Math", [1.0], [0.0, 0.0, 0.0]),
            scored("4", "Focus", [0.0], [0.0, 1.0, 0.0]),
        ]
    )
    assert (figures["Math"].value, figures["Focus"].value, figures["all"].value) == (1, 0, 0.5)


def test_rm_bench_asks_for_content_against_style():
    # The wrong response wins as soon as its style is fancier: every hard pair is lost.
    figures = rm_bench_figures([scored("1", "chat", [1.0, 2.0, 3.0], [0.5, 1.5, 2.5])])
    assert {name: figure.value for name, figure in figures.items()} == pytest.approx(
        {"all": 6 / 9, "hard": 0, "normal": 1, "easy": 1, "chat": 6 / 9}
    )


# ── Measuring ─────────────────────────────────────────────────────────────────────────


def by_length(
    prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
) -> list[Score]:
    """Longer is better; half of it as a dense reward. Empty responses cannot be scored."""
    return [
        Score(len(text) / 2, (ScoredSegment(len(text), len(text) / 2),)) if text else Score.cannot("empty")
        for text in completions
    ]


def test_dense_rewards_count_and_what_cannot_be_scored_is_left_out(tmp_path: Path):
    rows = [ALPACA | {"output_1": "longer"}, ALPACA | {"output_1": ""}, ALPACA | {"output_2": "longer"}]
    items = items_of("alpaca-pairs", written(tmp_path / "set.jsonl", *rows))
    scored_pairs, left_out = scored_items(by_length, items)
    assert [(item.chosen, item.rejected) for item in scored_pairs] == [((6.0,), (3.0,)), ((3.0,), (6.0,))]
    assert left_out == 1
    result = measure(YARDSTICKS["alpaca-pairs"], by_length, tmp_path / "set.jsonl")
    assert (result["items"], result["left_out"], result["figures"]["all"]["value"]) == (2, 1, 0.5)


def test_a_sample_of_a_set_is_the_same_every_time(tmp_path: Path):
    rows = [ALPACA | {"instruction": str(number), "output_1": "x" * number} for number in range(1, 30)]
    path = written(tmp_path / "set.jsonl", *rows)
    first, again = (measure(YARDSTICKS["alpaca-pairs"], by_length, path, most=10) for _ in range(2))
    assert first == again
    assert first["items"] == 10


def test_the_command_measures_a_reward_model_and_writes_the_result(
    backbone: Backbone, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    checkpoint = tmp_path / "checkpoint"
    spec = spec_of(backbone, SETTINGS)
    RewardModelling(backbone, spec, SETTINGS)
    disturb(backbone, "reward", scale=0.1)
    save_checkpoint(
        checkpoint,
        backbone=backbone,
        adapter="reward",
        kind="reward",
        spec=spec,
        steps=1,
        metrics={},
        dropped=[],
    )
    path = written(tmp_path / "set.jsonl", *[ALPACA | {"output_1": "x" * n} for n in range(1, 8)])
    out = tmp_path / "result.json"
    main([str(checkpoint), str(path), "--set", "alpaca-pairs", "--base", str(base), "--out", str(out)])
    result = json.loads(out.read_text())
    assert (result["set"], result["items"], result["chance"]) == ("alpaca-pairs", 7, 0.5)
    assert "AlpacaEval pairs: 7 items, 0 left out" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"nothing\.jsonl is no file"):
        main([str(checkpoint), str(tmp_path / "nothing.jsonl"), "--set", "rm-bench", "--base", str(base)])
