"""Exports of tools that trace, evaluate and annotate, on the shapes that they write."""

import json
from typing import Any

import pytest

from annotation.choices import RatingScale, Verdict
from annotation.exchange.formats.fields import FieldError
from annotation.exchange.formats.items import ImportedItem, ImportedJudgment
from annotation.exchange.formats.rows import read_rows
from tests.annotation.exchange.formats.reading import account_of, plan_rows, ranks_of, read_by, read_file
from tests.refusals import refused

Rows = list[dict[str, Any]]


def ratings(judgment: ImportedJudgment) -> list[tuple[int, str, str, int]]:
    return [(int(r.completion), r.criterion, str(r.scale), r.value) for r in judgment.ratings]


def critiques(judgment: ImportedJudgment) -> list[tuple[int, str]]:
    return [(int(c.completion), c.text) for c in judgment.critiques]


def texts(item: ImportedItem) -> list[str]:
    return [completion.text for completion in item.completions]


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def feedback(rating: int, *, siblings: tuple[str, ...] = ("beta",), **data: Any) -> dict[str, Any]:
    messages = {
        "q": {"id": "q", "parentId": None, "role": "user", "content": "Tea?"},
        "a": {"id": "a", "parentId": "q", "role": "assistant", "content": "Yes.", "model": "alpha"},
        "b": {"id": "b", "parentId": "q", "role": "assistant", "content": "No.", "model": "beta"},
    }
    return {
        "id": "f1",
        "user_id": "u7",
        "version": 0,
        "type": "rating",
        "data": {"rating": rating, "model_id": "alpha", "sibling_model_ids": list(siblings), **data},
        "meta": {"arena": True, "message_id": "a", "message_index": 1, "chat_id": "c1"},
        "snapshot": {"chat": {"id": "c1", "chat": {"history": {"messages": messages, "currentId": "a"}}}},
        "created_at": 1_700_000_000,
        "updated_at": 1_700_000_009,
    }


@pytest.mark.parametrize(("rating", "ranks", "thumb"), [(1, (1, 2), 1), (-1, (2, 1), 0)])
def test_open_webuis_rating_is_a_thumb_and_a_vote_against_the_other_model(
    rating: int, ranks: tuple[int, ...], thumb: int
):
    row = feedback(rating, reason="accurate", comment="Short.", details={"rating": 8})
    (item,) = read_file([row], "open-webui")
    assert item.messages == [{"role": "user", "content": "Tea?"}]
    assert [(c.text, c.source) for c in item.completions] == [("Yes.", "alpha"), ("No.", "beta")]
    (judgment,) = item.judgments
    assert (judgment.verdict, ranks_of(judgment), judgment.annotator) == (Verdict.RANKED, ranks, "u7")
    assert ratings(judgment) == [(0, "desirable", "thumbs", thumb)]
    assert judgment.comment == "accurate\n\nShort."
    # 1,700,000,000 seconds after 1970 began.
    assert judgment.created_at == "2023-11-14T22:13:20+00:00"
    assert item.metadata["details"] == {"rating": 8}


def test_open_webuis_rating_of_a_response_alone_is_no_vote_and_none_at_all_is_no_annotation():
    alone, none = feedback(1, siblings=()), feedback(0)
    (item,) = read_file([alone, none], "open-webui")
    assert (texts(item), item.judgments[0].verdict, ranks_of(item.judgments[0])) == (
        ["Yes."],
        Verdict.NOT_ASKED,
        (),
    )
    lines = [c.line for c in plan_rows([alone, none]).account if c.name == "data.rating"]
    assert "data.rating: not read: feedback without a rating is no annotation (1 row)" in lines


def test_langfuses_items_are_prompts_with_references_also_as_json_in_cells():
    row = {
        "id": "x1",
        "input": '{"question": "Tea?"}',
        "expectedOutput": '{"answer": "A drink."}',
        "metadata": '{"level": 2}',
        "sourceTraceId": "t1",
    }
    (item,) = read_file([row], "langfuse")
    assert (item.messages[0]["content"], item.references) == ("Tea?", ["A drink."])
    assert item.metadata == {"id": "x1", "level": 2, "sourceTraceId": "t1"}


def trace(number: int, *scores: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"t{number}",
        "timestamp": "2024-03-01T09:00:00Z",
        "input": [{"role": "user", "content": f"Tea {number}?"}],
        "output": {"role": "assistant", "content": "Yes."},
        "scores": list(scores),
    }


def score(name: str, value: Any, source: str = "ANNOTATION", **more: Any) -> dict[str, Any]:
    return {"name": name, "value": value, "source": source, **more}


def test_langfuses_scores_are_ratings_on_the_scale_of_the_whole_file_by_person_and_program():
    rows = [
        trace(1, score("quality", 1, authorUserId="ann"), score("quality", 4, "EVAL", comment="Clear.")),
        trace(2, score("quality", 5, authorUserId="ann"), score("ok", 0, dataType="BOOLEAN")),
    ]
    first, second = read_file(rows, "langfuse")
    ann, program = first.judgments
    # 1, 4 and 5 together are a scale from 1 to 5; a 1 alone could have been a thumb.
    assert (ann.annotator, ann.is_machine, ratings(ann)) == ("ann", False, [(0, "quality", "five", 1)])
    assert (program.is_machine, ratings(program), program.comment) == (
        True,
        [(0, "quality", "five", 4)],
        "Clear.",
    )
    assert [ratings(judgment) for judgment in second.judgments] == [
        [(0, "quality", "five", 5)],
        [(0, "ok", "thumbs", 0)],
    ]


def test_a_score_on_no_scale_of_rondo_must_be_left_out_and_stays_with_the_annotation():
    rows = [trace(1, score("cosine", 0.83))]
    (question,) = plan_rows(rows).questions
    assert question.name == "scores.cosine"
    assert "its values are no whole numbers" in question.reading
    plan = plan_rows(rows, leave_out=["scores.cosine"])
    (item,) = read_by(rows, plan)
    assert item.judgments[0].more == {"scores": [{"name": "cosine", "value": 0.83}]}
    assert not plan.questions


def test_a_table_of_inputs_outputs_and_ratings_is_no_trace():
    rows = [{"input": f"Tea {n}?", "output": "Yes.", "rating": n, "session_id": "s"} for n in (1, 4)]
    assert [ratings(item.judgments[0])[0][3] for item in read_file(rows, "trl-unpaired")] == [1, 4]


def test_langsmiths_rows_of_a_data_set_are_prompts_with_references():
    row = {"inputs": {"question": "Tea?"}, "outputs": {"answer": "A drink."}, "metadata": {"split": "base"}}
    (item,) = read_file([row], "langsmith")
    assert (item.messages[0]["content"], item.references, item.completions) == ("Tea?", ["A drink."], ())
    assert item.metadata == {"split": "base"}


def test_langsmiths_runs_are_responses_with_their_feedback():
    row = {
        "id": "r1",
        "run_type": "chain",
        "inputs": {
            "messages": [
                [
                    {
                        "lc": 1,
                        "id": ["langchain", "HumanMessage"],
                        "type": "constructor",
                        "kwargs": {"content": "Tea?"},
                    }
                ]
            ]
        },
        "outputs": {"generations": [[{"text": "Yes."}]]},
        "feedback": [
            {
                "key": "user_score",
                "score": 0,
                "comment": "Too short.",
                "feedback_source": {"type": "app", "user_id": "u1"},
                "created_at": "2024-03-01T09:00:00+00:00",
            },
            {"key": "user_score", "score": 1, "feedback_source": {"type": "model"}},
        ],
    }
    (item,) = read_file([row], "langsmith")
    assert (item.messages, texts(item)) == ([{"role": "user", "content": "Tea?"}], ["Yes."])
    person, program = item.judgments
    assert (person.annotator, person.comment, person.created_at) == (
        "u1",
        "Too short.",
        "2024-03-01T09:00:00+00:00",
    )
    # 0 and 1 together are thumbs.
    assert ratings(person) == [(0, "user_score", "thumbs", 0)]
    assert (program.is_machine, ratings(program)) == (True, [(0, "user_score", "thumbs", 1)])


@pytest.mark.parametrize(("scores", "ranks"), [((0, 1), (2, 1)), ((1, 0), (1, 2)), ((0.5, 0.5), (1, 1))])
@pytest.mark.parametrize("beside", [True, False])
def test_langsmiths_compared_runs_are_ranked_by_their_scores(
    scores: tuple[float, float], ranks: tuple[int, int], beside: bool
):
    runs: Rows = [
        {"id": "r1", "name": "alpha", "outputs": {"output": "Yes."}},
        {"id": "r2", "name": "beta", "outputs": {"output": "No."}},
    ]
    given: Rows = []
    if beside:
        by_id = {"r2": scores[1], "r1": scores[0]}
        given = [{"key": "better", "scores": by_id, "user_id": "u1"}]
    else:
        for run, value in zip(runs, scores, strict=True):
            run["feedback"] = [{"key": "better", "score": value, "feedback_source": {"user_id": "u1"}}]
    (item,) = read_file([{"inputs": {"question": "Tea?"}, "runs": runs, "feedback": given}], "langsmith")
    assert [(c.text, c.source) for c in item.completions] == [("Yes.", "alpha"), ("No.", "beta")]
    (judgment,) = item.judgments
    assert (ranks_of(judgment), judgment.annotator) == (ranks, "u1")


def test_a_mean_of_several_peoples_feedback_is_asked_about():
    row = {
        "run_type": "llm",
        "inputs": {"question": "Tea?"},
        "outputs": {"output": "Yes."},
        "feedback_stats": {"user_score": {"n": 3, "avg": 0.67}},
    }
    assert [column.name for column in plan_rows([row]).questions] == ["scores.user_score"]


def test_phoenixs_spans_bring_messages_annotations_and_labels():
    rows = [
        {
            "context.span_id": f"s{number}",
            "attributes.llm.input_messages": [
                {"message.role": "system", "message.content": "Be brief."},
                {"message.role": "user", "message.content": f"Tea {number}?"},
            ],
            "attributes.llm.output_messages": [{"message": {"role": "assistant", "content": "Yes."}}],
            "attributes.llm.model_name": "alpha",
            "annotations": [
                {
                    "name": "correctness",
                    "annotator_kind": "HUMAN",
                    "identifier": "u1",
                    "result": {"score": value, "label": label, "explanation": "So it is."},
                },
            ],
        }
        for number, value, label in ((1, 1, "correct"), (2, 0, "wrong"))
    ]
    first, second = read_file(rows, "phoenix")
    assert first.messages[0] == {"role": "system", "content": "Be brief."}
    assert (texts(first), first.completions[0].source) == (["Yes."], "alpha")
    assert [ratings(item.judgments[0]) for item in (first, second)] == [
        [(0, "correctness", "thumbs", 1)],
        [(0, "correctness", "thumbs", 0)],
    ]
    assert first.judgments[0].comment == "So it is."
    assert first.judgments[0].more == {"scores": [{"name": "correctness", "label": "correct"}]}


def result(provider: str, output: str | None, human: bool | None = None, **grading: Any) -> dict[str, Any]:
    parts = [{"pass": output == "4", "score": 1, "reason": "Expected 4", "assertion": {"type": "equals"}}]
    if human is not None:
        parts.append({"pass": human, "score": int(human), "reason": "Manual", "assertion": {"type": "human"}})
    return {
        "testIdx": 0,
        "promptIdx": 0,
        "prompt": {"raw": "2 + 2?", "label": "sum"},
        "provider": {"id": provider},
        "vars": {"a": 2},
        "response": {"output": output} if output else {"error": "timeout"},
        "score": 1,
        "success": True,
        "gradingResult": {"pass": True, "score": 1, "reason": "", "componentResults": parts, **grading},
    }


def test_promptfoos_outputs_are_compared_with_a_persons_and_the_assertions_pass_or_fail(tmp_path):
    results = [
        result("alpha", "4", human=False, comment="Too terse."),
        result("beta", "5"),
        result("gamma", None),
    ]
    document = {"evalId": "e1", "results": {"version": 3, "results": results}, "config": {}}
    path = tmp_path / "results.json"
    path.write_text(json.dumps(document, indent=2))
    rows: list[Any] = [row for _, row in read_rows(path)]
    assert rows == [document]
    (item,) = read_file(rows, "promptfoo")
    assert [(c.text, c.source) for c in item.completions] == [("4", "alpha"), ("5", "beta")]
    person, program = item.judgments
    assert (ratings(person), critiques(person)) == ([(0, "pass", "thumbs", 0)], [(0, "Too terse.")])
    assert (program.annotator, program.is_machine) == ("promptfoo", True)
    assert ratings(program) == [(0, "pass", "thumbs", 1), (1, "pass", "thumbs", 0)]
    assert critiques(program) == [(1, "Expected 4")]
    assert account_of(rows)["response.output"] == "not read: the provider gave no output (1 row)"
    # The same as lines, of which those of one test and prompt stand together.
    (from_lines,) = read_file(results, "promptfoo")
    assert from_lines.judgments == item.judgments


def potato(labels: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": "1",
        "user_id": "u1",
        "prompt": "Tea?",
        "responses": ["Yes.", "No.", "Maybe."][: more.pop("k", 2)],
        "displayed_text": "…",
        "label_annotations": labels,
        "span_annotations": [],
        **more,
    }


@pytest.mark.parametrize(
    ("labels", "verdict", "ranks", "strength"),
    [
        ({"preference": {"selection": "B"}}, Verdict.RANKED, (2, 1), None),
        ({"preference": {"selection": "tie"}}, Verdict.EQUAL, (1, 1), None),
        ({"scale": {"scale_value": "-2"}}, Verdict.RANKED, (1, 2), 2),
        ({"scale": {"scale_value": "1"}}, Verdict.RANKED, (2, 1), 1),
        ({"scale": {"scale_value": 0}}, Verdict.EQUAL, (1, 1), None),
        ({"which_is_better": {"Response A": "1"}}, Verdict.RANKED, (1, 2), None),
    ],
)
def test_potatos_choice_between_two_is_the_preference(
    labels: dict[str, Any], verdict: Verdict, ranks: tuple[int, ...], strength: int | None
):
    (item,) = read_file([potato(labels)], "potato")
    (judgment,) = item.judgments
    assert (judgment.verdict, ranks_of(judgment), judgment.strength) == (verdict, ranks, strength)
    assert judgment.annotator == "u1"


def test_potatos_best_and_worst_are_a_ranking_with_the_others_between():
    row = potato({"bws": {"best": "B", "worst": "A"}}, k=3)
    (item,) = read_file([row], "potato")
    assert ranks_of(item.judgments[0]) == (3, 1, 2)
    with refused("ranking_expected", FieldError):
        read_file([potato({"bws": {"best": "B", "worst": "B"}}, k=3)], "potato")


def test_potatos_text_in_parts_and_a_single_text_with_ratings_spans_and_a_comment():
    parted = potato(
        {"preference": {"selection": "A"}},
        displayed_text="Is tea good?<br><b>A.</b> It is.<br><b>B.</b> It is not.",
        behavioral_data={"time_string": "Time spent: 0d 0h 1m 5s "},
    )
    del parted["prompt"], parted["responses"]
    (item,) = read_file([parted], "potato")
    assert (item.messages[0]["content"], texts(item)) == ("Is tea good?", ["It is.", "It is not."])
    assert (ranks_of(item.judgments[0]), item.judgments[0].active_seconds) == ((1, 2), 65)
    rows = [
        potato(
            {"quality_rating": {f"scale_{value}": str(value)}, "why": {"text_box": "Short."}},
            displayed_text="It is hot.",
            span_annotations=[{"schema": "errors", "name": "vague", "start": 6, "end": 9, "span": "hot"}],
        )
        for value in (2, 5)
    ]
    for row in rows:
        del row["responses"]
    first, second = (item.judgments[0] for item in read_file(rows, "potato"))
    assert (ratings(first), ratings(second)) == (
        [(0, "quality_rating", RatingScale.FIVE, 2)],
        [(0, "quality_rating", RatingScale.FIVE, 5)],
    )
    assert first.comment == "Short."
    assert [(s.category, s.start, s.end) for s in first.spans] == [("vague", 6, 9)]


def test_a_label_of_potato_that_may_be_a_verdict_and_names_no_response_is_asked_about():
    rows = [potato({"preferred_style": {"formal": "1"}})]
    assert [column.name for column in plan_rows(rows).questions] == ["label_annotations.preferred_style"]
    (item,) = read_by(rows, plan_rows(rows, leave_out=["label_annotations.preferred_style"]))
    assert item.judgments[0].more == {"labels": {"preferred_style": {"formal": "1"}}}


def summaries(choice: Any) -> dict[str, Any]:
    return {
        "info": {"id": "t3_1", "post": "I drank tea.", "title": "Tea", "subreddit": "tea"},
        "summaries": [
            {"text": " Tea was had.", "policy": "sup1", "note": "plain"},
            {"text": " Coffee.", "policy": "ref", "note": None},
        ],
        "choice": choice,
        "worker": "w1",
        "batch": "b3",
        "split": "train",
        "extra": {"confidence": 7},
    }


@pytest.mark.parametrize(("choice", "ranks"), [(0, (1, 2)), (1, (2, 1))])
def test_openais_choice_of_a_summary_counts_from_0(choice: int, ranks: tuple[int, int]):
    (item,) = read_file([summaries(choice)], "summarize-from-feedback")
    assert item.messages[0]["content"] == "Tea\n\nI drank tea."
    assert [(c.text, c.source) for c in item.completions] == [("Tea was had.", "sup1"), ("Coffee.", "ref")]
    (judgment,) = item.judgments
    assert (ranks_of(judgment), judgment.annotator, critiques(judgment)) == (ranks, "w1", [(0, "plain")])
    assert judgment.more == {"confidence": 7}
    assert item.metadata == {"id": "t3_1", "batch": "b3", "split": "train"}


@pytest.mark.parametrize("choice", [2, -1, "1st", None])
def test_another_choice_of_a_summary_is_refused(choice: Any):
    with pytest.raises(FieldError) as wrong:
        read_file([summaries(choice)], "summarize-from-feedback")
    assert wrong.value.field == "choice"


def test_a_summary_alone_has_ratings_on_axes_from_1_to_7():
    row = summaries(0)
    del row["summaries"], row["choice"]
    row["summary"] = {"text": "Tea.", "policy": "sup1", "note": "", "axes": {"overall": 6, "coverage": None}}
    (item,) = read_file([row], "summarize-from-feedback")
    assert ratings(item.judgments[0]) == [(0, "overall", "seven", 6)]
