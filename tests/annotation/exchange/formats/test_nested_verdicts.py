"""Label Studio, Argilla, arenas, Rondo's table: no verdict is inverted, and none lost without a word."""

import csv
import io
import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from annotation.choices import Verdict
from annotation.exchange.file_imports import items_of
from annotation.exchange.formats import rondo_csv
from annotation.exchange.formats.fields import FieldError
from annotation.exchange.formats.items import ImportedItem, ImportedJudgment
from annotation.exchange.formats.registry import READERS
from annotation.exchange.formats.rows import read_rows
from annotation.exchange.formats.writers import Scene
from annotation.record.judgment import EvidencePointer
from tests.annotation.exchange.formats.reading import (
    SAMPLES,
    Rows,
    account_of,
    plan_rows,
    ranks_of,
    read_by,
    read_file,
)
from tests.annotation.exchange.formats.test_writers import record, written
from tests.refusals import refused

ARENA = SAMPLES["readers"]["chatbot-arena"]
ALL = {"prompt": "Tea?", "answer_1": "Yes.", "answer_2": "No."}


def result(
    kind: str, value: dict[str, Any], name: str = "pref", to: str = "prompt", **more: Any
) -> dict[str, Any]:
    return {"type": kind, "from_name": name, "to_name": to, "value": value, **more}


def choice(*chosen: str, **more: Any) -> dict[str, Any]:
    return result("choices", {"choices": list(chosen)}, **more)


def task(
    number: int, *results: dict[str, Any], data: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    data = {**(data or ALL), "prompt": f"Tea {number}?"}
    return {"id": number, "data": data, "annotations": [{"id": number, "result": list(results), **more}]}


def judgment_of(*results: dict[str, Any], **more: Any) -> ImportedJudgment:
    (item,) = read_file([task(1, *results, **more)], "label-studio")
    return item.judgments[0]


@pytest.mark.parametrize(
    ("chosen", "best"),
    [
        *(("Response A", 0), ("answer_2", 1), ("Left is better", 0), ("B is much better", 1), ("right", 1)),
        *(("2", 1), ("1", 0), ("The second", 1), ("Answer 2", 1), ("model_b", 1)),
    ],
)
def test_label_studios_choice_names_the_winner(chosen: str, best: int):
    judgment = judgment_of(choice(chosen))
    assert (judgment.verdict, ranks_of(judgment).index(1)) == (Verdict.RANKED, best)


@given(
    names=st.sampled_from(
        [("answer_1", "answer_2"), ("response_0", "response_1"), ("output_a", "output_b"), ("text1", "text2")]
    ),
    best=st.integers(0, 1),
    shuffled=st.booleans(),
    spelled=st.sampled_from(["{}", " {} ", "[[{}]]", "{} is better"]),
)
def test_a_choice_by_the_tasks_own_name_is_never_turned_round(
    names: tuple[str, str], best: int, shuffled: bool, spelled: str
):
    texts = {names[0]: "first", names[1]: "second"}
    data = dict(reversed(texts.items())) if shuffled else texts
    row = task(1, choice(spelled.format(names[best])), data={"prompt": "Tea?", **data})
    (item,) = read_file([row], "label-studio")
    winner = item.completions[ranks_of(item.judgments[0]).index(1)].text
    assert winner == texts[names[best]]


@pytest.mark.parametrize(("to", "selected", "best"), list(itertools.product(range(2), range(2), range(1))))
def test_the_left_of_a_pair_is_the_first_that_the_result_names(to: int, selected: int, best: int):
    names = [["answer_1", "answer_2"], ["answer_2", "answer_1"]][to]
    side = ["left", "right"][selected]
    judgment = judgment_of(result("pairwise", {"selected": side}, to=",".join(names)))
    assert ranks_of(judgment).index(1) == ["answer_1", "answer_2"].index(names[selected])


def test_choices_are_read_by_the_whole_file_and_what_is_unclear_is_asked_about():
    data = {"prompt": "Tea?", "output_a": "Yes.", "output_b": "No."}
    zero_based = [task(n, choice(str(n)), data=data) for n in (0, 1)]
    items = read_file(zero_based, "label-studio")
    # With a 0 in the file, 1 is the second.
    assert [ranks_of(item.judgments[0]) for item in items] == [(1, 2), (2, 1)]
    (question,) = plan_rows([task(1, choice("1"), data=data)]).questions
    assert "may count from 0 or from 1" in question.reading
    odd = [task(1, choice("answer_1")), task(2, choice("Much worse"))]
    (question,) = plan_rows(odd).questions
    assert "'much worse'" in question.reading
    plan = plan_rows(odd, meanings={"Much worse": "answer_2:3"})
    assert [ranks_of(item.judgments[0]) for item in read_by(odd, plan)] == [(1, 2), (2, 1)]
    plan = plan_rows(odd, leave_out=["result.pref"])
    assert [item.judgments[0].verdict for item in read_by(odd, plan)] == [Verdict.NOT_ASKED] * 2
    kept = [item.judgments[0].more["results"][0]["value"] for item in read_by(odd, plan)]
    assert kept == [{"choices": ["answer_1"]}, {"choices": ["Much worse"]}]


def test_a_tie_goes_before_a_pair_in_any_order_and_two_winners_are_refused():
    pair = result("pairwise", {"selected": "left"}, name="pair", to="answer_1,answer_2")
    for results in ((pair, choice("tie")), (choice("tie"), pair)):
        judgment = judgment_of(*results)
        assert (judgment.verdict, ranks_of(judgment)) == (Verdict.EQUAL, (1, 1))
    with refused("preferences_differ", FieldError):
        judgment_of(pair, choice("answer_2"))


def test_a_result_that_is_left_out_is_not_read_whatever_it_is():
    pair = result("pairwise", {"selected": "left"}, name="pair", to="answer_1,answer_2")
    rows = [task(1, pair, result("textarea", {"text": ["Fine."]}, "note"))]
    plan = plan_rows(rows, leave_out=["result.pair", "result.note"])
    (item,) = read_by(rows, plan)
    (judgment,) = item.judgments
    assert (judgment.verdict, judgment.comment) == (Verdict.NOT_ASKED, "")
    assert [kept["from_name"] for kept in judgment.more["results"]] == ["pair", "note"]
    lines = [column.line for column in plan.account if column.name.startswith("result.")]
    assert lines == [f"result.{name}: not read: left out (1 row)" for name in ("pair", "note")]
    rows = [argilla(1, why=[said("Shorter.")], better=[said("A")])]
    (item,) = read_by(rows, plan_rows(rows, leave_out=["responses.why"]))
    assert (ranks_of(item.judgments[0]), item.judgments[0].comment) == ((1, 2), "")
    assert item.judgments[0].more == {"responses": {"why": "Shorter."}}


def test_results_of_other_types_are_listed_and_kept_and_those_like_verdicts_asked_about():
    results = [
        result("taxonomy", {"taxonomy": [["Error", "Fact"]]}, "tax", "answer_1"),
        result("number", {"number": 4}, "n", "answer_1"),
        result("paragraphlabels", {"start": "0", "end": "0", "paragraphlabels": ["Error"]}, "pl", "answer_1"),
        {"type": "relation", "from_id": "a", "to_id": "b", "direction": "right"},
    ]
    rows = [task(1, *results)]
    assert [column.name for column in plan_rows(rows).questions] == ["result.tax", "result.n"]
    plan = plan_rows(rows, leave_out=["result.tax", "result.n"])
    lines = {column.name: column.line for column in plan.account}
    assert lines["result.tax"] == "result.tax: not read: left out (1 row)"
    assert lines["result.pl"] == "result.pl: kept as metadata (1 row)"
    (item,) = read_by(rows, plan)
    assert [kept["type"] for kept in item.judgments[0].more["results"]] == [
        *("taxonomy", "number", "paragraphlabels", "relation"),
    ]


def test_notes_of_regions_stay_with_their_spans_and_all_comments_are_kept():
    region = {"start": 0, "end": 3, "text": "Yes"}
    judgment = judgment_of(
        result("labels", {**region, "labels": ["vague"]}, "m", "answer_1", id="x"),
        result("textarea", {**region, "text": ["Too short."]}, "why", "answer_1", id="x"),
        result("rating", {**region, "rating": 4}, "severity", "answer_1", id="x"),
        result("textarea", {"start": 0, "end": 2, "text": ["No what?"]}, "why", "answer_2", id="y"),
        result("textarea", {"text": ["First."]}, "note"),
        result("textarea", {"text": "Second."}, "more"),
    )
    assert [(s.start, s.end, s.note) for s in judgment.spans] == [(0, 3, "Too short.")]
    assert judgment.comment == "First.\n\nSecond.\n\n“No”: No what?"
    # A region's rating is none of the response.
    assert judgment.ratings == ()
    assert judgment.more["results"][0]["value"]["rating"] == 4


def _severity(value: object) -> dict[str, Any]:
    region = {"start": 0, "end": 3, "text": "Yes", "labels": ["vague"]}
    return task(1, result("labels", region, "m", "answer_1", id="x", meta={"severity": value}))


def test_a_severity_is_a_whole_number_or_refused():
    (item,) = READERS["label-studio"].read(_severity(2.0))
    (span,) = item.judgments[0].spans
    assert (span.severity, type(span.severity)) == (2, int)
    for wrong in ("2", True, 2.5):
        with refused("number_expected", FieldError):
            list(READERS["label-studio"].read(_severity(wrong)))


def test_evidence_names_a_sentence_by_a_whole_number_or_is_refused():
    def read(sentence: object) -> ImportedJudgment:
        evidence = [{"passage": 0, "sentence": sentence, "quote": "Hot."}]
        lack = {"completion": "1", "category": "gap", "text": "", "insert_at": None, "evidence": evidence}
        context = [{"title": "Tea", "sentences": ["Hot.", "Green."]}]
        row = {**record("Yes.", "No.", ranks=(1, 2), missing=[lack]), "context": context}
        (item,) = READERS["jsonl"].read(row)
        return item.judgments[0]

    for value, sentence in ((1.0, 1), (0, 0), (None, None)):
        (lack,) = read(value).missing
        assert lack.evidence == (EvidencePointer(passage=0, sentence=sentence),)
        assert type(lack.evidence[0].sentence) is type(sentence)
    for wrong in ("1", True, 0.5):
        with refused("number_expected", FieldError, field="missing.evidence"):
            read(wrong)


def test_label_studios_time_is_that_of_the_annotation_and_paths_count_by_their_global_offsets():
    span = {
        "start": "/div[1]/p[1]/text()[1]",
        "end": "/div[1]/p[1]/text()[1]",
        "startOffset": 0,
        "endOffset": 3,
        "globalOffsets": {"start": 0, "end": 3},
        "text": "Yes",
        "hypertextlabels": ["vague"],
    }
    judgment = judgment_of(
        result("hypertextlabels", span, "m", "answer_1"),
        created_at="2024-03-01T09:00:00Z",
        updated_at="2024-03-09T09:00:00Z",
    )
    assert judgment.created_at == "2024-03-01T09:00:00+00:00"
    assert [(s.category, s.start, s.end) for s in judgment.spans] == [("vague", 0, 3)]


def test_skipped_tasks_drafts_and_predictions_are_listed_as_not_read():
    row = task(1, choice("answer_1"), was_cancelled=True)
    row |= {"drafts": [{"result": []}], "predictions": [{"result": []}]}
    lines = account_of([row])
    assert lines["annotations[].was_cancelled"] == "not read: a skipped task is no annotation (1 row)"
    assert lines["drafts"] == "not read: a draft is no annotation (1 row)"
    assert lines["predictions"] == "not read: a model's prediction is no annotation (1 row)"
    assert read_file([row], "label-studio")[0].judgments == ()


def argilla(number: int, **questions: list[dict[str, Any]]) -> dict[str, Any]:
    data = {**ALL, "prompt": f"Tea {number}?"}
    return {"id": f"r{number}", "fields": data, "metadata": {"domain": "drinks"}, "responses": questions}


def said(value: Any, user: str = "u1", status: str = "submitted", **more: Any) -> dict[str, Any]:
    return {"value": value, "user_id": user, "status": status, **more}


def test_only_submitted_responses_of_argilla_are_judgments():
    better = [
        said("answer_1", updated_at="2024-03-01T09:00:00"),
        *(said("answer_2", f"u{n}", status) for n, status in enumerate(("draft", "discarded", "pending"), 2)),
    ]
    rows = [argilla(1, better=better)]
    (item,) = read_file(rows, "argilla")
    (judgment,) = item.judgments
    assert (judgment.annotator, ranks_of(judgment)) == ("u1", (1, 2))
    assert judgment.created_at == "2024-03-01T09:00:00+00:00"
    assert item.metadata == {"id": "r1", "domain": "drinks"}
    lines = [c.line for c in plan_rows(rows).account if c.kind == "not_read"]
    assert lines == [
        f"responses.better: not read: {why} (1 row)"
        for why in (
            "a draft is no annotation",
            "a discarded response is no annotation",
            "a pending response is no annotation",
        )
    ]


@pytest.mark.parametrize("empty", [None, ""])
def test_a_submission_of_argilla_without_any_value_is_no_judgment_and_listed(empty: Any):
    rows = [argilla(1, better=[said(empty), said("answer_2", "u2")], why=[said(empty), said(empty, "u2")])]
    (item,) = read_file(rows, "argilla")
    assert [(j.annotator, ranks_of(j)) for j in item.judgments] == [("u2", (2, 1))]
    not_read = [c.line.partition(":")[0] for c in plan_rows(rows).account if c.kind == "not_read"]
    assert not_read == ["responses.better", "responses.why"]
    (item,) = read_file([argilla(1, spans_answer_1=[said([])])], "argilla")
    assert [(j.annotator, j.spans) for j in item.judgments] == [("u1", ())]


@pytest.mark.parametrize("thumb", [0, 1])
def test_a_thumb_that_went_out_to_argilla_comes_back_as_a_thumb_and_not_as_the_worst_of_five(thumb: int):
    rating = {"completion": "1", "criterion": "desirable", "scale": "thumbs", "value": thumb}
    rows, _ = written("argilla", record("Leaves.", verdict="not_asked", ratings=[rating]))
    (item,) = read_file(rows, "argilla")
    (read,) = item.judgments[0].ratings
    assert (read.completion, read.criterion, read.scale, read.value) == ("0", "desirable", "thumbs", thumb)


def test_argillas_labels_name_the_winner_and_a_label_that_names_none_is_asked_about():
    rows = [argilla(1, better=[said("A")]), argilla(2, better=[said("B is much better")])]
    items = read_file(rows, "argilla")
    assert [(ranks_of(i.judgments[0]), i.judgments[0].strength) for i in items] == [
        ((1, 2), None),
        ((2, 1), 3),
    ]
    odd = [argilla(1, better=[said("the shorter")])]
    (question,) = plan_rows(odd).questions
    assert question.name == "responses.better"
    (item,) = read_by(odd, plan_rows(odd, leave_out=["responses.better"]))
    assert item.judgments[0].more == {"responses": {"better": "the shorter"}}
    (item,) = read_file([argilla(1, why=[said("the shorter")])], "argilla")
    assert item.judgments[0].comment == "the shorter"


def test_a_rating_belongs_to_the_answer_whose_whole_name_its_question_has():
    data = {"prompt": "Tea?", **{f"answer_{n}": f"Text {n}" for n in range(1, 11)}}
    row = {
        "fields": data,
        "responses": {"answer_10_quality": [said(4)], "quality_answer_1": [said(2)]},
    }
    (item,) = read_file([row], "argilla")
    assert [(int(r.completion), r.criterion, r.value) for r in item.judgments[0].ratings] == [
        (9, "quality", 4),
        (0, "quality", 2),
    ]


def test_argillas_older_responses_by_person_are_read_too():
    responses = [{"user_id": "u1", "values": {"better": {"value": "answer_2"}}, "status": "submitted"}]
    (item,) = read_file([{**argilla(1), "responses": responses}], "argilla")
    assert ranks_of(item.judgments[0]) == (2, 1)


def talk(name: str) -> list[dict[str, str]]:
    users, answers = ("One?", "Two?"), (f"{name} one", f"{name} two")
    turns = zip(users, answers, strict=True)
    return [
        m for u, a in turns for m in ({"role": "user", "content": u}, {"role": "assistant", "content": a})
    ]


def test_mt_bench_compares_the_answers_of_the_turn_that_was_judged():
    row = {k: v for k, v in ARENA.items() if k in ("question_id", "model_a", "model_b", "winner")}
    row |= {"judge": "gpt4_pair", "conversation_a": talk("A"), "conversation_b": talk("B")}
    first, second = read_file([{**row, "turn": 1}, {**row, "turn": 2, "winner": "model_b"}], "chatbot-arena")
    assert [m["content"] for m in first.messages] == ["One?"]
    assert [c.text for c in first.completions] == ["A one", "B one"]
    assert [m["content"] for m in second.messages] == ["One?", "Two?"]
    assert [c.text for c in second.completions] == ["A two", "B two"]
    assert second.metadata["earlier_answers"] == [["A one"], ["B one"]]
    assert [ranks_of(item.judgments[0]) for item in (first, second)] == [(1, 2), (2, 1)]
    assert first.judgments[0].is_machine
    # An arena's vote is on all turns, of which it has the number.
    (vote,) = read_file([{**row, "turn": 2, "tstamp": 1682351591.1}], "chatbot-arena")
    assert [c.text for c in vote.completions] == ["A one\n\nA two", "B one\n\nB two"]


@pytest.mark.parametrize("name", ["tstamp", "timestamp", "created_at"])
def test_an_arenas_time_is_read_under_every_name(name: str):
    row = {k: v for k, v in ARENA.items() if k != "tstamp"}
    (item,) = read_file([{**row, name: "2025-05-01T10:00:00+00:00"}], "chatbot-arena")
    assert item.judgments[0].created_at == "2025-05-01T10:00:00+00:00"


@pytest.mark.parametrize("write", [repr, __import__("json").dumps])
def test_an_arenas_chats_in_cells_are_read_as_json_and_as_pythons_lists(write: Any):
    row = {**ARENA, **{n: write(ARENA[n]) for n in ("conversation_a", "conversation_b")}, "machine": "False"}
    (item,) = read_file([row], "chatbot-arena")
    assert [c.text for c in item.completions] == ["Yes.", "No."]


def table(*shown: dict[str, Any]) -> Rows:
    """The rows of Rondo's table for records, as a file of it has them."""
    scene = Scene(slug="tea")
    header = rondo_csv.header(scene)
    rows: Rows = []
    for each in shown:
        for row in rondo_csv._rows(each, scene):
            if isinstance(row, dict):
                rows.append({name: rondo_csv.safe(row[name]) for name in header})
    return rows


RECORDS = [
    {**record("a", "b", ranks=(1, 2)), "judgment": "1"},
    {**record("=c", "'d", "e", ranks=(2, 1, 2)), "judgment": "2", "metadata": {"domain": "tea, hot"}},
    {**record("f", "g", ranks=(1, 1), verdict="both_bad"), "judgment": "3"},
    {**record("h", verdict="cannot_judge"), "judgment": "4"},
]


def by_judgment(items: list[ImportedItem]) -> dict[str, Any]:
    return {
        item.judgments[0].more["judgment"]: (
            item.judgments[0].verdict,
            dict(zip((c.text for c in item.completions), ranks_of(item.judgments[0]) or (0,), strict=False)),
            item.metadata,
        )
        for item in items
    }


WHOLE = by_judgment(read_file(table(*RECORDS), "csv"))


def test_the_table_says_how_many_answers_a_judgment_has_and_carries_metadata():
    rows = table(*RECORDS)
    assert [row["answers"] for row in rows] == ["2", "2", "3", "3", "3", "2", "2", "1"]
    assert rows[2]["metadata"] == '{"domain": "tea, hot"}'
    assert WHOLE["2"] == ("ranked", {"=c": 2, "'d": 1, "e": 2}, {"domain": "tea, hot"})


@given(rows=st.permutations(table(*RECORDS)), kept=st.integers(1, 8), old=st.booleans())
def test_a_table_in_another_order_or_cut_is_equal_or_refused(rows: Rows, kept: int, old: bool):
    rows = rows[:kept]
    if old:
        rows = [{name: cell for name, cell in row.items() if name != "answers"} for row in rows]
    plan, errors = plan_rows(rows), list[FieldError]()
    items = [
        item for _, item in items_of(iter(enumerate(rows, 1)), plan, lambda _, error: errors.append(error))
    ]
    assert {(error.field, error.code) for error in errors} <= {("judgment", "judgment_torn")}
    if errors:
        return
    read_back = by_judgment(items)
    complete = {row["judgment"] for row in rows}
    assert read_back.keys() == complete
    for judgment, values in read_back.items():
        if not old or kept == 8:
            assert values == WHOLE[judgment]
        else:
            # Without the number of answers the last ones of a ranking may be missing; none is turned round.
            whole = WHOLE[judgment][1]
            assert all(whole[text] >= rank for text, rank in values[1].items())


def test_excels_first_line_and_old_line_ends_are_read(tmp_path: Path):
    cells = [["prompt", "answer_1", "answer_2", "winner"], ["Tea, hot?", "Yes.", 'N"o.', "1"]]
    out = io.StringIO()
    csv.writer(out, delimiter=";", lineterminator="\r\n").writerows(cells)
    expected = [(1, dict(zip(*cells, strict=True)))]
    for name, content in (
        ("sep", f"sep=;\r\n{out.getvalue()}"),
        ("mark", f'\ufeff"sep=;"\r\n{out.getvalue()}'),
        ("mac", out.getvalue().replace("\r\n", "\r")),
    ):
        path = tmp_path / f"{name}.csv"
        path.write_bytes(content.encode())
        assert list(read_rows(path)) == expected, name
    path = tmp_path / "mixed.csv"
    path.write_bytes(b"a,b\n1,2\r3,4\n")
    _, error = next(read_rows(path))
    assert isinstance(error, FieldError)
    assert (error.code, error.params) == ("not_csv", {"line": 2})


def test_a_list_of_outputs_is_refused_with_the_files_own_name():
    rows = [{"instruction": "Tea?", "input": "", "output": ["Yes.", "No."]}]
    with refused("text_expected", FieldError, field="output"):
        list(read_by(rows, plan_rows(rows)))
