"""Every column of a file is accounted for, no verdict is turned round, and none is lost without a word."""

import csv
import io
import json
import random
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from annotation.choices import Verdict
from annotation.errors import Refusal
from annotation.exchange.file_imports import import_file, items_of, plan_of
from annotation.exchange.formats.fields import FieldError
from annotation.exchange.formats.items import ImportedItem, ranks_by_place
from annotation.exchange.formats.plans import Plan, require_answers
from annotation.exchange.formats.rows import read_rows
from annotation.models import Comparison, Judgment, Project, Prompt
from tests.annotation.exchange.formats.reading import ranks_of

FAST = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def written(folder: Path, rows: Sequence[dict[str, Any]], name: str = "rows.jsonl") -> Path:
    path = folder / name
    if name.endswith(".csv"):
        names = list(dict.fromkeys(key for row in rows for key in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, names)
        writer.writeheader()
        writer.writerows(rows)
        path.write_text(text.getvalue(), encoding="utf-8")
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def kinds(plan: Plan) -> dict[str, str]:
    return {column.name: column.kind for column in plan.account}


def read(
    folder: Path, rows: Sequence[dict[str, Any]], name: str = "rows.jsonl", **choices: Any
) -> list[ImportedItem]:
    """The items of a file. Raises `Refusal` for an open question, `FieldError` for a bad row."""
    path = written(folder, rows, name)
    plan = plan_of(path, **choices)
    require_answers(plan.questions)

    def refuse(number: int, error: FieldError) -> None:
        raise error

    return [item for _, item in items_of(read_rows(path), plan, refuse)]


def read_or_refused(
    folder: Path, rows: Sequence[dict[str, Any]], name: str
) -> tuple[list[ImportedItem], str]:
    """The items of a file, or the words of its refusal."""
    try:
        return read(folder, rows, name), ""
    except (Refusal, FieldError) as error:
        return [], str(error)


def best(item: ImportedItem) -> str | None:
    """The text that won; None where nothing did."""
    (judgment,) = item.judgments
    winners = [c.text for c, rank in zip(item.completions, ranks_of(judgment), strict=True) if rank == 1]
    return winners[0] if judgment.verdict == Verdict.RANKED and len(winners) == 1 else None


def pair(names: tuple[str, str] = ("response_a", "response_b"), **more: Any) -> dict[str, Any]:
    return {"prompt": "Tea?", names[0]: "Yes.", names[1]: "No.", **more}


# ── The account ──────────────────────────────────────────────────────────────────────────────────────────


def test_every_column_is_listed_with_what_becomes_of_it_and_its_rows(tmp_path: Path):
    rows = [pair(winner="A", domain="drinks", seen=None) for _ in range(25)]
    # A key that first stands in row 26 counts, too.
    rows.append(pair(winner="B", annotator="kim", late="yes"))
    plan = plan_of(written(tmp_path, rows), leave_out=["domain"], mapping={"metadata": "late"})
    assert [(column.name, column.kind, column.rows) for column in plan.account] == [
        ("prompt", "read", 26),
        ("response_a", "read", 26),
        ("response_b", "read", 26),
        ("winner", "read", 26),
        ("domain", "left_out", 25),
        ("seen", "not_read", 0),
        ("annotator", "read", 1),
        ("late", "metadata", 1),
    ]
    winner = plan.account[3]
    assert winner.values == (("a", 25, "response_a"), ("b", 1, "response_b"))


@pytest.mark.django_db
def test_a_dry_run_prints_the_account_and_writes_nothing(tmp_path: Path, project: Project):
    path = written(tmp_path, [pair(winner="A", domain="drinks")])
    output = StringIO()
    call_command("import_judgments", str(path), project=project.slug, dry_run=True, stdout=output)
    assert "winner: read as the preference (1 row): 'a' (1) is response_a" in output.getvalue()
    assert "domain: kept as metadata (1 row)" in output.getvalue()
    assert not Prompt.objects.exists()


@pytest.mark.django_db
def test_metadata_stays_with_the_comparison_and_what_differs_with_the_judgment(
    tmp_path: Path, project: Project
):
    rows = [
        pair(winner="A", annotator="kim", domain="drinks", took=3),
        pair(winner="B", annotator="lee", domain="drinks", took=9),
        {"prompt": "Alone?", "domain": "none"},
    ]
    import_file(project=project, path=written(tmp_path, rows[:2]))
    import_file(project=project, path=written(tmp_path, rows[2:], "prompts.jsonl"))
    comparison = Comparison.objects.get()
    assert comparison.metadata == {"domain": "drinks", "took": 3}
    second = Judgment.objects.get(annotator__username__endswith="lee")
    assert second.imported_from["more"] == {"took": 9}
    assert [prompt.metadata for prompt in Prompt.objects.order_by("pk")] == [None, {"domain": "none"}]


@pytest.mark.django_db
def test_metadata_of_what_is_there_is_filled_up_and_what_differs_is_counted(tmp_path: Path, project: Project):
    first = [{"prompt": "Alone?", "domain": "none"}, pair(domain="drinks")]
    import_file(project=project, path=written(tmp_path, first))
    more = [
        {"prompt": "Alone?", "domain": "all", "topic": "t1"},
        {"prompt": "Alone?", "topic": "t1"},
        {"prompt": "Twice?", "domain": "a"},
        {"prompt": "Twice?", "domain": "b", "topic": "t2"},
        pair(domain="drinks", topic="t3"),
        pair(domain="food", topic="t3"),
    ]
    record = import_file(project=project, path=written(tmp_path, more, "more.jsonl"))
    assert record.counts["metadata_differs"] == 3
    assert {prompt.last_question: prompt.metadata for prompt in Prompt.objects.all()} == {
        "Alone?": {"domain": "none", "topic": "t1"},
        Comparison.objects.get().prompt.last_question: None,
        "Twice?": {"domain": "a", "topic": "t2"},
    }
    assert Comparison.objects.get().metadata == {"domain": "drinks", "topic": "t3"}


@pytest.mark.parametrize(
    "column",
    [
        *({"xq": value} for value in ("response_b", "B", 2, -2, True, "b is better")),
        *({name: "?"} for name in ("rating", "my_label", "vote_of_expert", "weight", "rank", "humanVerdict")),
        {"annotations": [{"label": "A"}]},
    ],
    ids=str,
)
def test_answers_without_a_verdict_are_refused_until_the_other_columns_are_placed(
    tmp_path: Path, column: dict[str, Any]
):
    (name,) = column
    rows = [pair(**column)]
    with pytest.raises(Refusal) as refused:
        read(tmp_path, rows)
    assert refused.value.field == "columns"
    assert f"column {name}:" in refused.value.message
    (item,) = read(tmp_path, rows, leave_out=[name])
    assert not item.judgments
    (item,) = read(tmp_path, rows, mapping={"metadata": name})
    assert item.metadata == column


def test_a_second_verdict_beside_the_first_is_asked_about(tmp_path: Path):
    row = pair(("response_0", "response_1"), better_response_id=1, safer_response_id=0)
    with pytest.raises(Refusal, match="column safer_response_id"):
        read(tmp_path, [row])
    (item,) = read(tmp_path, [row], leave_out=["safer_response_id"])
    assert best(item) == "No."


def test_answers_alone_are_work_that_waits(tmp_path: Path):
    (item,) = read(tmp_path, [pair(id=7, model_a="m", language="en")])
    assert not item.judgments
    assert [completion.source for completion in item.completions] == ["m", ""]
    assert item.metadata == {"id": 7, "language": "en"}


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"mapping": {"winner": "nowhere"}}, "No row has the column 'nowhere'"),
        ({"mapping": {"prompt": ["prompt", "response_a"]}}, "Two columns are to be 'prompt'"),
        ({"mapping": {"winner": "vote"}, "leave_out": ["vote"]}, "is to be winner and leave_out"),
        ({"format_name": "trl-preference", "mapping": {"winner": "vote"}}, "reads no winner"),
        ({"meanings": {"a": "response_z"}}, "has no answer 'response_z'"),
    ],
)
def test_a_choice_that_cannot_be_is_refused(tmp_path: Path, stated: dict[str, Any], message: str):
    with pytest.raises(Refusal, match=message):
        read(tmp_path, [pair(vote="A")], **stated)


def test_an_error_names_the_column_of_the_file(tmp_path: Path):
    with pytest.raises(FieldError) as wrong:
        read(tmp_path, [pair(winner="A") | {"response_b": ""}])
    assert wrong.value.field == "response_b"
    with pytest.raises(FieldError) as wrong:
        read(tmp_path, [{"prompt": "Tea?", "chosen": "Yes.", "rejected": "Yes."}])
    assert wrong.value.field == "rejected"


# ── Winners ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("names", "values", "texts"),
    [
        # The file's own names and numbers come first.
        (("response_0", "response_1"), ["response_1", "response_1"], ["No.", "No."]),
        (("answer_0", "answer_1"), [1, 1], ["No.", "No."]),
        (("answer_0", "answer_1"), [1, 0], ["No.", "Yes."]),
        (("answer_1", "answer_2"), ["1", "2"], ["Yes.", "No."]),
        (("response_a", "response_b"), ["B", "a"], ["No.", "Yes."]),
        (("response_1", "response_2"), ["B", "Model A"], ["No.", "Yes."]),
        # A 0 makes the whole column count from 0; a 2 of two answers makes it count from 1.
        (("response_a", "response_b"), [0, 1], ["Yes.", "No."]),
        (("response_a", "response_b"), [2, 1], ["No.", "Yes."]),
        (("response_a", "response_b"), ["2.0", "1.0"], ["No.", "Yes."]),
        (("response_a", "response_b"), ["left", "right"], ["Yes.", "No."]),
        (("response_a", "response_b"), ["[[B]]", "A"], ["No.", "Yes."]),
        (("response_a", "response_b"), ["B is better", "prefer A"], ["No.", "Yes."]),
        (("response_a", "response_b"), ["A>>B", "A<B"], ["Yes.", "No."]),
        (("gpt_answer_a", "gpt_answer_b"), ["gpt_answer_b", "b"], ["No.", "No."]),
    ],
)
def test_a_winner_is_the_one_that_the_file_means(
    tmp_path: Path, names: tuple[str, str], values: list[Any], texts: list[str]
):
    items = read(tmp_path, [pair(names, winner=value, id=n) for n, value in enumerate(values)])
    assert [best(item) for item in items] == texts


@pytest.mark.parametrize(
    ("names", "values"),
    [
        # May count from 0 or from 1.
        (("response_a", "response_b"), [1, 1]),
        # 0 may be the first answer, or no winner.
        (("answer_1", "answer_2"), [0, 1]),
        (("answer_1", "answer_2"), [0, 1, 2]),
        (("answer_0", "answer_1"), [1, 2]),
        # An even scale, or the low end of an odd one.
        (("response_a", "response_b"), [1, 4]),
        (("response_a", "response_b"), ["A", "1"]),
        (("response_a", "response_b"), [True, False]),
        (("response_a", "response_b"), ["yes", "no"]),
        (("response_a", "response_b"), [0.5, 1.5]),
    ],
)
def test_what_could_be_either_is_asked_about_and_answered(
    tmp_path: Path, names: tuple[str, str], values: list[Any]
):
    rows = [pair(names, preference=value, id=n) for n, value in enumerate(values)]
    with pytest.raises(Refusal, match="column preference") as refused:
        read(tmp_path, rows)
    assert refused.value.field == "columns"
    meanings = {str(value).lower(): names[1] for value in values}
    items = read(tmp_path, rows, meanings=meanings)
    assert [best(item) for item in items] == ["No."] * len(values)


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        ([-3, 0, 3, 1], [("Yes.", 3), (None, None), ("No.", 3), ("No.", 1)]),
        ([-1, 1, 1, 0], [("Yes.", None), ("No.", None), ("No.", None), (None, None)]),
        ([1, 3, 5, 4], [("Yes.", 2), (None, None), ("No.", 2), ("No.", 1)]),
        ([1, 4, 7, 6], [("Yes.", 3), (None, None), ("No.", 3), ("No.", 2)]),
        (["-2.0", "0.0", "1", "2"], [("Yes.", 2), (None, None), ("No.", 1), ("No.", 2)]),
    ],
)
def test_a_scale_is_winner_and_strength(
    tmp_path: Path, scale: list[Any], expected: list[tuple[str | None, int | None]]
):
    rows = [pair(overall_preference=value, id=n) for n, value in enumerate(scale)]
    plan = plan_of(written(tmp_path, rows))
    (column,) = [column for column in plan.account if column.name == "overall_preference"]
    assert "a scale from" in column.reading
    items = read(tmp_path, rows)
    assert [(best(item), item.judgments[0].strength) for item in items] == expected


@pytest.mark.parametrize("word", ["neither", "none", "n/a", "maybe"])
def test_a_word_that_is_no_verdict_is_a_bad_row_until_it_has_a_meaning(tmp_path: Path, word: str):
    rows = [pair(winner="A"), pair(winner=word, id=2)]
    with pytest.raises(FieldError) as wrong:
        read(tmp_path, rows)
    assert wrong.value.field == "winner"
    items = read(tmp_path, rows, meanings={word: "both_bad"})
    assert items[1].judgments[0].verdict == Verdict.BOTH_BAD


def test_a_winner_may_be_the_name_of_its_model_or_its_text(tmp_path: Path):
    rows = [
        pair(model_a="smol", model_b="large", winner="large"),
        pair(model_a="large", model_b="smol", winner="large", id=2),
    ]
    assert [best(item) for item in read(tmp_path, rows)] == ["No.", "Yes."]


@pytest.mark.parametrize(
    ("row", "ranks"),
    [
        ({"winner": "B"}, (0, 1, 0)),
        ({"rank_1": 2, "rank_2": 1}, (2, 1, 0)),
        ({"winner": "tie"}, (1, 1, 1)),
    ],
    ids=str,
)
def test_the_best_of_three_leaves_the_others_unordered(
    tmp_path: Path, row: dict[str, Any], ranks: tuple[int, ...]
):
    (item,) = read(tmp_path, [{"prompt": "Tea?", "answer_1": "a", "answer_2": "b", "answer_3": "c", **row}])
    assert item.judgments[0].ranks == ranks_by_place(ranks)


def test_scores_order_the_answers_and_ratings_are_ratings(tmp_path: Path):
    (item,) = read(tmp_path, [pair(score_a=1.5, score_b=9.0)])
    assert best(item) == "No."
    (item,) = read(tmp_path, [pair(helpful_rating_a=4, helpful_rating_b=2, winner="A")])
    assert best(item) == "Yes."
    ratings = {(int(r.completion), r.criterion, r.scale, r.value) for r in item.judgments[0].ratings}
    assert ratings == {(0, "helpful_rating", "five", 4), (1, "helpful_rating", "five", 2)}


def test_a_source_belongs_to_the_answer_with_its_letter(tmp_path: Path):
    (item,) = read(tmp_path, [pair(model_b="tuned", winner="b")])
    assert [completion.source for completion in item.completions] == ["", "tuned"]


WORDS = st.sampled_from(["winner", "preference", "choice", "better", "vote", "human_preference", "verdict"])
STEMS = st.sampled_from(["response", "answer", "output", "completion", "summary", "model_answer"])
MARKS = st.sampled_from([("a", "b"), ("A", "B"), ("0", "1"), ("1", "2")])


@FAST
@given(
    stem=STEMS,
    marks=MARKS,
    column=WORDS,
    winners=st.lists(st.integers(0, 1), min_size=1, max_size=30),
    style=st.sampled_from(["name", "mark", "model", "number", "scale", "signed", "better"]),
    late=st.integers(0, 25),
    is_csv=st.booleans(),
    swap=st.randoms(use_true_random=False),
)
@example("answer", ("0", "1"), "winner", [1], "number", 0, False, random.Random(0))
def test_a_verdict_is_never_turned_round_and_never_lost(
    tmp_path: Path,
    stem: str,
    marks: tuple[str, str],
    column: str,
    winners: list[int],
    style: str,
    late: int,
    is_csv: bool,
    swap: random.Random,
):
    """A winner comes in right, or the file is refused, whatever its names, numbers, orders and scales."""
    # A 1 alone is the number of an answer: nobody can see that it was one of five degrees.
    assume(style != "scale" or 1 in winners)
    names = (f"{stem}_{marks[0]}", f"{stem}_{marks[1]}")
    spelled = {
        "name": names,
        "mark": marks,
        "model": (f"model_{marks[0]}", f"Model {marks[1]}"),
        "number": (1, 2) if marks != ("0", "1") else (0, 1),
        "scale": (1, 5),
        "signed": (-2, 2),
        "better": (f"{names[0]} is better", f"{names[1]} is much better"),
    }[style]
    rows: list[dict[str, Any]] = [
        {"prompt": f"Early {n}?", names[0]: f"first {n}", names[1]: f"second {n}"} for n in range(late)
    ]
    for n, winner in enumerate(winners):
        row = {"prompt": f"Q{n}?", names[0]: f"first {n}", names[1]: f"second {n}", column: spelled[winner]}
        keys = list(row)
        swap.shuffle(keys)
        rows.append({key: row[key] for key in keys})
    items, refusal = read_or_refused(tmp_path, rows, "rows.csv" if is_csv else "rows.jsonl")
    if refusal:
        assert column in refusal
        return
    judged = [item for item in items if item.judgments]
    assert len(judged) == len(winners)
    for item, winner in zip(judged, winners, strict=True):
        assert (best(item) or "").startswith(("first", "second")[winner])


@FAST
@given(
    name=st.from_regex(r"[a-z]{1,6}(_[a-z]{1,6})?", fullmatch=True),
    values=st.lists(
        st.sampled_from(["response_a", "response_b", "A", "B", "left", "right", "A is better"]),
        min_size=1,
        max_size=30,
    ),
)
def test_a_column_of_any_name_that_holds_a_preference_is_read_or_asked_about(
    tmp_path: Path, name: str, values: list[str]
):
    rows = [pair(id=n) | {name: value} for n, value in enumerate(values)]
    if name in rows[0] and rows[0].keys() != {"prompt", "response_a", "response_b", "id", name}:
        return
    plan = plan_of(written(tmp_path, rows))
    assert kinds(plan)[name] == "question" or plan.roles.columns.get(name) in (
        *("winner", "comment", "annotator", "context", "reference", "system", "tag", "input", "id", "prompt"),
        *("messages", "history"),
    )
    if plan.roles.columns.get(name) == "winner" and not plan.questions:
        items = read(tmp_path, rows)
        expected = ["No." if value in ("response_b", "B", "right") else "Yes." for value in values]
        assert [best(item) for item in items] == expected


# ── Ratings, demonstrations, prompts ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("row", "rating"),
    [
        ({"prompt": "Tea?", "response": "Yes.", "rating": 1}, ("rating", "five", 1)),
        ({"prompt": "Tea?", "response": "Yes.", "stars": 6}, ("stars", "seven", 6)),
        ({"question": "Tea?", "answer": "Yes.", "score": 0.0}, ("score", "thumbs", 0)),
        ({"prompt": "Tea?", "completion": "Yes.", "label": "1"}, ("desirable", "thumbs", 1)),
        ({"prompt": "Tea?", "completion": "Yes.", "label": "False"}, ("desirable", "thumbs", 0)),
        ({"prompt": "Tea?", "completion": "Yes.", "feedback": "👎"}, ("feedback", "thumbs", 0)),
        (
            {
                "messages": [{"role": "user", "content": "Tea?"}, {"role": "assistant", "content": "Yes."}],
                "label": True,
            },
            ("desirable", "thumbs", 1),
        ),
        (
            {
                "conversations": [{"from": "human", "value": "Tea?"}, {"from": "gpt", "value": "Yes."}],
                "kto_tag": False,
            },
            ("desirable", "thumbs", 0),
        ),
        ({"instruction": "Tea?", "input": "", "output": "Yes.", "kto_tag": True}, ("desirable", "thumbs", 1)),
    ],
    ids=str,
)
def test_a_rated_answer_is_a_rating_and_never_a_reference(
    tmp_path: Path, row: dict[str, Any], rating: tuple[str, str, int]
):
    (item,) = read(tmp_path, [row])
    assert item.references == []
    assert [completion.text for completion in item.completions] == ["Yes."]
    (found,) = item.judgments[0].ratings
    assert (found.criterion, str(found.scale), found.value) == rating


def rated(tmp_path: Path, *rows: dict[str, int]) -> list[dict[str, tuple[str, int]]]:
    """Return the scale and value of each rating of each row."""
    items = read(tmp_path, [{"prompt": "Tea?", "response": f"Yes {n}.", **row} for n, row in enumerate(rows)])
    return [
        {rating.criterion: (str(rating.scale), rating.value) for rating in item.judgments[0].ratings}
        for item in items
    ]


def test_who_rates_from_zero_in_one_column_does_so_in_the_others(tmp_path: Path):
    first, second = rated(
        tmp_path,
        {"quality_rating": 0, "tone_rating": 4, "is_correct": 1},
        {"quality_rating": 3, "tone_rating": 1, "is_correct": 0},
    )
    assert first == {"quality_rating": ("five", 1), "tone_rating": ("five", 5), "is_correct": ("thumbs", 1)}
    assert second == {"quality_rating": ("five", 4), "tone_rating": ("five", 2), "is_correct": ("thumbs", 0)}
    # A 5 shows that the other column goes from 1.
    first, _second = rated(
        tmp_path, {"quality_rating": 0, "tone_rating": 5}, {"quality_rating": 3, "tone_rating": 1}
    )
    assert first == {"quality_rating": ("five", 1), "tone_rating": ("five", 5)}


def test_helpsteers_columns_go_from_0_to_4_whatever_a_sample_of_it_has(tmp_path: Path):
    names = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")
    first, second = rated(
        tmp_path,
        dict(zip(names, (3, 4, 4, 0, 2), strict=True)),
        dict(zip(names, (1, 3, 4, 1, 1), strict=True)),
    )
    assert first == dict(zip(names, [("five", value) for value in (4, 5, 5, 1, 3)], strict=True))
    assert second == dict(zip(names, [("five", value) for value in (2, 4, 5, 2, 2)], strict=True))


@pytest.mark.parametrize(
    "column",
    [{"reward": -3.2}, {"rating": 10}, {"score": 1}, {"quality": 0.7}, {"preference_weight": 2.5}],
    ids=str,
)
def test_a_number_on_no_scale_of_ours_is_asked_about(tmp_path: Path, column: dict[str, Any]):
    (name,) = column
    with pytest.raises(Refusal, match=f"column {name}"):
        read(tmp_path, [{"prompt": "Tea?", "completion": "Yes.", **column}])


def test_a_scale_from_0_to_4_is_one_of_five_steps(tmp_path: Path):
    rows = [{"prompt": f"{n}?", "response": "Yes.", "helpfulness": n, "correctness": 4 - n} for n in range(5)]
    items = read(tmp_path, rows)
    values = {r.criterion: r.value for r in items[0].judgments[0].ratings}
    assert values == {"helpfulness": 1, "correctness": 5}


def test_an_answer_with_the_weight_0_is_no_reference(tmp_path: Path):
    turns = [{"role": "user", "content": "Tea?"}, {"role": "assistant", "content": "No!", "weight": 0}]
    plan = plan_of(written(tmp_path, [{"messages": turns}]))
    assert ("messages[].weight", "not_read") in kinds(plan).items()
    (item,) = read(tmp_path, [{"messages": turns}])
    assert item.references == []


SYSTEM = {"role": "system", "content": "Be kind."}
ANSWERS: dict[str, dict[str, Any]] = {
    "trl-preference": {"chosen": "Yes.", "rejected": "No."},
    "trl-prompt-completion": {"completion": "Yes."},
    "trl-unpaired": {"completion": "Yes.", "label": True},
    "table": {"answer_1": "Yes.", "answer_2": "No.", "winner": "answer_1"},
}


@pytest.mark.parametrize("format_name", ANSWERS)
@pytest.mark.parametrize(
    ("parts", "messages"),
    [
        ({"system": "Be kind.", "prompt": "Tea?"}, [SYSTEM, {"role": "user", "content": "Tea?"}]),
        ({"instruction": "Translate", "input": "Tee"}, [{"role": "user", "content": "Translate\nTee"}]),
        ({"instruction": "Translate", "input": ""}, [{"role": "user", "content": "Translate"}]),
        (
            {"system": "Be kind.", "history": [["Hi", "Hello"]], "instruction": "Tea?", "input": "Now"},
            [
                SYSTEM,
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello"},
                {"role": "user", "content": "Tea?\nNow"},
            ],
        ),
        ({"prompt": '[{"role": "user", "content": "Tea?"}]'}, [{"role": "user", "content": "Tea?"}]),
        ({"prompt": "[{'role': 'user', 'content': 'Tea?'}]"}, [{"role": "user", "content": "Tea?"}]),
        ({"conversations": [{"from": "human", "value": "Tea?"}]}, [{"role": "user", "content": "Tea?"}]),
    ],
    ids=["system", "input", "no input", "history", "JSON", "Python", "conversations"],
)
def test_no_part_of_a_prompt_is_dropped(
    tmp_path: Path, format_name: str, parts: dict[str, Any], messages: list[dict[str, str]]
):
    row = {**parts, **ANSWERS[format_name]}
    plan = plan_of(written(tmp_path, [row]))
    assert plan.reader.name == format_name
    (item,) = read(tmp_path, [row])
    assert item.messages == messages


@pytest.mark.django_db
def test_a_second_reference_of_the_same_prompt_is_kept(tmp_path: Path, project: Project):
    rows = [{"prompt": "Tea?", "completion": text} for text in ("Yes.", "Sure.", "Yes.")]
    import_file(project=project, path=written(tmp_path, rows))
    assert Prompt.objects.get().references == ["Yes.", "Sure."]
    import_file(project=project, path=written(tmp_path, [{"prompt": "Tea?", "completion": "Of course."}]))
    assert Prompt.objects.get().references == ["Yes.", "Sure.", "Of course."]


def test_chats_in_the_cells_of_a_table_are_chats_and_other_json_is_text(tmp_path: Path):
    turn = json.dumps([{"role": "assistant", "content": "Yes."}])
    rows = [
        {"prompt": "Tea?", "answer_1": turn, "answer_2": '{"tea": 1}', "winner": "answer_1"},
        {"prompt": "Tea?", "answer_1": "[1, 2]", "answer_2": "[]", "winner": "answer_2"},
    ]
    items = read(tmp_path, rows, "rows.csv")
    texts = [[completion.text for completion in item.completions] for item in items]
    assert texts == [["Yes.", '{"tea": 1}'], ["[1, 2]", "[]"]]
    cut = [{"prompt": "[{'role': 'user', 'content': 'Tea?'} {'role': 'x'}]", "completion": "Yes."}]
    with pytest.raises(FieldError):
        read(tmp_path, cut, "rows.csv")


# ── People, times, duplicates ────────────────────────────────────────────────────────────────────────────


def test_a_number_of_an_annotator_is_one_person_however_it_is_written(tmp_path: Path):
    names = [12, 12.0, "12", " 12 ", "12.0", 0, "Kim@Example.org"]
    rows = [pair(winner="A", id=n, annotator_id=name) for n, name in enumerate(names)]
    annotators = [item.judgments[0].annotator for item in read(tmp_path, rows)]
    assert annotators == ["12", "12", "12", "12", "12", "0", "kim@example.org"]


@pytest.mark.parametrize("name", ["created_at", "timestamp", "tstamp", "annotated_at", "createdAt"])
@pytest.mark.parametrize(
    ("value", "moment"),
    [
        ("2024-03-01T09:00:00Z", "2024-03-01T09:00:00+00:00"),
        ("2024-03-01 09:00:00+02:00", "2024-03-01T09:00:00+02:00"),
        ("2024-03-01 09:00:00", "2024-03-01T09:00:00+00:00"),
        (1709283600, "2024-03-01T09:00:00+00:00"),
        (1709283600000, "2024-03-01T09:00:00+00:00"),
        ("1709283600.5", "2024-03-01T09:00:00.500000+00:00"),
    ],
)
def test_a_time_comes_in_by_its_usual_names_and_forms(tmp_path: Path, name: str, value: Any, moment: str):
    (item,) = read(tmp_path, [pair(winner="A", **{name: value})])
    assert item.judgments[0].created_at == moment
    plan = plan_of(written(tmp_path, [pair(winner="A", **{name: value})]))
    (column,) = [column for column in plan.account if column.name == name]
    assert ("UTC" in column.reading) == (value == "2024-03-01 09:00:00")


@pytest.mark.django_db
def test_a_duplicate_is_there_already_and_a_contradiction_is_listed(tmp_path: Path, project: Project):
    named: dict[str, Any] = {"annotator": "kim"}
    rows = [
        pair(winner="response_a", **named),
        pair(winner="response_a", **named),
        # The same verdict with the sides exchanged.
        {"prompt": "Tea?", "response_a": "No.", "response_b": "Yes.", "winner": "response_b", **named},
        pair(winner="response_b", **named),
    ]
    record = import_file(project=project, path=written(tmp_path, rows))
    assert (record.counts["judgments"], record.counts["already_there"]) == (1, 2)
    (error,) = record.errors
    assert error.startswith("row 4: kim judged the same answers differently")
    # From another file, too.
    record = import_file(project=project, path=written(tmp_path, [{**rows[2], "id": 3}], "again.jsonl"))
    assert (record.counts["judgments"], record.counts["already_there"]) == (0, 1)


# ── Formats that are recognised by the whole file ────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("early", "late"),
    [
        ({"prompt": "Tea {}?"}, {"chosen": "Yes.", "rejected": "No."}),
        ({"prompt": "Tea {}?", "completion": "Yes."}, {"label": False}),
    ],
    ids=["pairs", "labels"],
)
def test_a_key_that_first_stands_in_row_21_is_no_less_read(
    tmp_path: Path, early: dict[str, str], late: dict[str, Any]
):
    rows = [{name: text.format(n) for name, text in early.items()} for n in range(26)]
    rows = [row | late if n >= 20 else row for n, row in enumerate(rows)]
    path = written(tmp_path, rows)
    plan = plan_of(path)
    bad: list[int] = []
    items = [item for _, item in items_of(read_rows(path), plan, lambda number, error: bad.append(number))]
    assert bad == list(range(1, 21))
    assert [len(item.judgments) for item in items] == [1] * 6
