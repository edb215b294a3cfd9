"""Conditions on any column, joined by and and or: every answer is that of a plain evaluation in Python."""

import itertools
import json
import re
from typing import Any

import pytest
from django.http import QueryDict
from django.utils import timezone
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from annotation.models import Comparison, Completion, Project, Prompt, User
from annotation.selectors.tables.conditions import TableCondition, from_json, from_query, to_pairs
from annotation.selectors.tables.data import TABLES
from annotation.selectors.tables.metadata import metadata_names
from annotation.selectors.tables.table import View
from tests import factories
from tests.refusals import refused

pytestmark = pytest.mark.django_db

VALUES: list[Any] = [
    *("medical", "Medical advice", "law", "", "5", " 5 ", "-0.5", "5e1", "5 apples", "Ärztin", "a.b%_c"),
    *(5, 0.5, -3, 50, True, None, ["law", "tax"]),
]
"""Values of metadata: what JSON Lines hold, and the texts that tables hold."""
NAMES = ["domain", 'odd "name".[0]', "0"]
TODAY = timezone.localdate()
WANTED = ["medical", "MEDICAL", "law", "5", "5.0", "0.5", "50 %", "true", "ärzt", "%", "_", "."]


def make_rows(project: Project) -> list[dict[str, Any]]:
    """Write comparisons with metadata of their own and of their prompts; return the values of each."""
    rows = []
    for number, value in enumerate(VALUES * 2):
        # The second time under the prompt: a comparison has the metadata of its prompt, too.
        of_prompt = number >= len(VALUES)
        of_row = {NAMES[number % 3]: value, NAMES[(number + 1) % 3]: VALUES[(7 * number) % len(VALUES)]}
        prompt = factories.make_prompt(project, f"Question {number}?", tags=["hard"] if number % 4 else [])
        if of_prompt:
            Prompt.objects.filter(pk=prompt.pk).update(metadata=of_row)
        comparison = factories.make_comparison(project, prompt=prompt, round_number=1 + number % 5)
        agreement = [None, 0.0, 0.25, 0.5, 1.0][number % 5]
        own = {NAMES[0]: "law"} if of_prompt and number % 2 else None
        Comparison.objects.filter(pk=comparison.pk).update(
            agreement=agreement, metadata=own if of_prompt else of_row
        )
        merged = {**of_row, **(own or {})}
        rows.append(
            {
                "pk": comparison.pk,
                "round": comparison.round_number,
                "agreement": agreement,
                "tags": ", ".join(prompt.tags),
                "prompt": f"Question {number}?",
                **{f"metadata.{name}": merged.get(name) for name in NAMES},
            }
        )
    return rows


def number_of(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str) and re.fullmatch(r"\s*[-+]?\d+(\.\d*)?([eE][-+]?\d+)?\s*", value):
        return float(value)
    return None


def text_of(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)


def wanted_number(text: str) -> float | None:
    share = 100 if text.endswith("%") else 1
    try:
        return float(text.removesuffix("%")) / share
    except ValueError:
        return None


def is_met(row: dict[str, Any], condition: TableCondition) -> bool:
    value, to = row[condition.column], condition.value
    text = text_of(value)
    # A value whose JSON is null is no value; numbers that only look so are compared as numbers, too.
    equals = text == to or (
        condition.column not in ("tags", "prompt")
        and number_of(value) is not None
        and number_of(value) == wanted_number(to)
    )
    contains = text not in (None, "") and bool(re.search(re.escape(to), text or "", re.IGNORECASE))
    number, bound = number_of(value), wanted_number(to)
    has = number is not None and bound is not None
    return {
        "equals": text is not None and equals,
        "differs": not (text is not None and equals),
        "contains": contains,
        "lacks": not contains,
        "present": text not in (None, ""),
        "missing": text in (None, ""),
        "at_least": has and (number or 0) >= (bound or 0),
        "at_most": has and (number or 0) <= (bound or 0),
        "above": has and (number or 0) > (bound or 0),
        "below": has and (number or 0) < (bound or 0),
    }[condition.relation]


TEXTS = ["equals", "differs", "contains", "lacks", "present", "missing"]
NUMBERS = ["equals", "differs", "at_least", "at_most", "above", "below", "present", "missing"]
numbers = st.sampled_from(["0", "0.5", "1", "2", "5", "50 %", "-3", "50", "0.25"])
conditions = st.one_of(
    st.builds(
        TableCondition,
        column=st.sampled_from([f"metadata.{name}" for name in NAMES]),
        relation=st.sampled_from(TEXTS),
        value=st.sampled_from(WANTED),
    ),
    st.builds(
        TableCondition,
        column=st.sampled_from(["round", "agreement", *(f"metadata.{name}" for name in NAMES)]),
        relation=st.sampled_from(NUMBERS),
        value=numbers,
    ),
    st.builds(
        TableCondition,
        column=st.sampled_from(["tags", "prompt"]),
        relation=st.sampled_from(TEXTS),
        value=st.sampled_from(["hard", "HARD", "1", "Question 3?"]),
    ),
)
filters = st.lists(st.lists(conditions, min_size=1, max_size=4), min_size=1, max_size=4)


def address_of(alternatives: list[list[TableCondition]]) -> QueryDict:
    query = QueryDict(mutable=True)
    for name, value in to_pairs(alternatives):
        query.appendlist(name, value)
    return query


@pytest.fixture(params=[pytest.param("", marks=[]), pytest.param("postgres", marks=pytest.mark.postgres)])
def rows(request: pytest.FixtureRequest, project: Project) -> list[dict[str, Any]]:
    return make_rows(project)


def check(project: Project, rows: list[dict[str, Any]], alternatives: list[list[TableCondition]]) -> None:
    view = View(TABLES["comparisons"], project, address_of(alternatives))
    assert view.conditions == alternatives
    assert view.fault is None
    expected = {row["pk"] for row in rows if any(all(is_met(row, c) for c in each) for each in alternatives)}
    found = set(view.matching.values_list("pk", flat=True))
    assert [row for row in rows if row["pk"] in found ^ expected] == []


@examples(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(alternatives=filters)
def test_any_filter_leaves_the_rows_that_a_plain_evaluation_leaves(
    alternatives: list[list[TableCondition]], project: Project, rows: list[dict[str, Any]]
):
    check(project, rows, alternatives)


def test_every_relation_to_every_value_is_that_of_a_plain_evaluation(
    project: Project, rows: list[dict[str, Any]]
):
    for name, relation, value in itertools.product(NAMES, TEXTS, WANTED):
        check(project, rows, [[TableCondition(column=f"metadata.{name}", relation=relation, value=value)]])


def keys(
    project: Project, table: str, *alternatives: list[tuple[str, str, str]], order: str = ""
) -> list[int]:
    query = address_of(
        [[TableCondition(column=c, relation=r, value=v) for c, r, v in each] for each in alternatives]
    )
    query["order"] = order
    return [pk for pk, _cells in View(TABLES[table], project, query).lines]


def test_prompts_responses_and_annotations_are_found_by_the_metadata_of_their_comparison(
    project: Project, alice: User
):
    found, other = (
        factories.make_comparison(project, prompt=factories.make_prompt(project, t)) for t in "ab"
    )
    Comparison.objects.filter(pk=found.pk).update(metadata={"domain": "medical", "hard": "0.7"})
    Comparison.objects.filter(pk=other.pk).update(metadata={"domain": "law", "hard": "0.07"})
    judgment = factories.make_judgment(found, alice)
    medical = [("metadata.domain", "equals", "medical")]
    assert keys(project, "prompts", medical) == [found.prompt_id]
    assert set(keys(project, "responses", medical)) == set(found.completions.values_list("pk", flat=True))
    assert keys(project, "annotations", medical) == [judgment.pk]
    # Texts that are all numbers are sorted as numbers.
    assert keys(project, "comparisons", order="metadata.hard") == [other.pk, found.pk]
    assert keys(project, "comparisons", order="-metadata.hard") == [found.pk, other.pk]
    assert keys(project, "prompts", order="metadata.domain") == [other.prompt_id, found.prompt_id]


def test_metadata_is_a_column_in_one_query_for_all_rows(project: Project, django_assert_max_num_queries):
    for number in range(4):
        comparison = factories.make_comparison(project)
        Comparison.objects.filter(pk=comparison.pk).update(metadata={"domain": f"d{number}"})
    view = View(TABLES["comparisons"], project, QueryDict("columns=prompt&columns=metadata.domain"))
    with django_assert_max_num_queries(12):
        shown = [[cell.text for column, cell in cells if "." in column.name] for _pk, cells in view.lines]
    assert shown == [["d3"], ["d2"], ["d1"], ["d0"]]


@pytest.fixture
def engines(project: Project) -> list[Comparison]:
    """Three comparisons: responses of engines a and b, of b and of nothing known, and without metadata."""
    texts: list[list[dict[str, Any] | None]] = [
        [{"engine": "a", "length": "9"}, {"engine": "b", "length": "120"}],
        [{"engine": "B", "length": "30"}, None],
        [None, None],
    ]
    made = []
    for values in texts:
        comparison = factories.make_comparison(project)
        for candidate, metadata in zip(comparison.candidates.order_by("index"), values, strict=True):
            Completion._base_manager.filter(pk=candidate.completion_id).update(metadata=metadata)
        made.append(comparison)
    # Another project's names are no columns of this one.
    other = factories.make_comparison(factories.make_project(slug="coffee"))
    Completion._base_manager.filter(comparisons=other).update(metadata={"secret": "x"})
    return made


@pytest.mark.parametrize(
    ("relation", "value", "places"),
    [
        ("equals", "a", [0]),
        ("differs", "a", [1, 2]),
        ("contains", "B", [0, 1]),
        ("lacks", "b", [2]),
        ("present", "", [0, 1]),
        ("missing", "", [2]),
    ],
)
def test_comparisons_are_found_by_the_metadata_of_one_of_their_responses(
    project: Project, engines: list[Comparison], relation: str, value: str, places: list[int]
):
    found = keys(project, "comparisons", [("response_metadata.engine", relation, value)])
    assert sorted(found) == [engines[place].pk for place in places]


def test_metadata_of_responses_is_compared_and_sorted_as_numbers_and_is_a_column(
    project: Project, engines: list[Comparison], django_assert_max_num_queries: Any
):
    first, second, without = (row.pk for row in engines)
    assert keys(project, "comparisons", [("response_metadata.length", "above", "100")]) == [first]
    # One response meets each condition, not always the same.
    both = [("response_metadata.length", "below", "10"), ("response_metadata.engine", "equals", "b")]
    assert keys(project, "comparisons", both) == [first]
    assert keys(project, "comparisons", order="-response_metadata.length") == [first, second, without]
    assert keys(project, "comparisons", order="response_metadata.engine") == [without, first, second]
    view = View(TABLES["comparisons"], project, QueryDict("columns=prompt&columns=response_metadata.length"))
    with django_assert_max_num_queries(12):
        shown = [cells[1][1].text for _pk, cells in view.lines]
    assert shown == ["—", "30 · —", "9 · 120"]
    # As on the page of a comparison, what names a model is not shown.
    Completion._base_manager.filter(comparisons=first).update(metadata={"length": "starter"})
    view = View(TABLES["comparisons"], project, QueryDict("columns=prompt&columns=response_metadata.length"))
    assert "starter" not in view.lines[-1][1][1][1].text
    names = {column.name for column in view.all_columns if "metadata" in column.name}
    assert names == {"response_metadata.engine", "response_metadata.length"}
    # Slices are by what comparisons and prompts have themselves.
    assert metadata_names(project) == []


def test_days_are_compared_as_days(project: Project):
    prompt = factories.make_prompt(project)
    today = timezone.localdate().isoformat()
    for relation, is_there in (("equals", 1), ("at_least", 1), ("at_most", 1), ("above", 0), ("below", 0)):
        assert keys(project, "prompts", [("created", relation, today)]) == [prompt.pk] * is_there


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        (("agreement", "below", "half"), "condition_needs_number"),
        (("agreement", "contains", "5"), "unknown_relation"),
        (("agreement", "near", "5"), "unknown_relation"),
        (("gone", "equals", "5"), "unknown_column"),
        (("metadata.gone", "equals", "5"), "unknown_column"),
        (("prompt", "contains", ""), "condition_without_value"),
    ],
)
def test_a_condition_that_cannot_be_met_leaves_no_row_and_says_why(
    project: Project, condition: tuple[str, str, str], code: str
):
    factories.make_comparison(project)
    column, relation, value = condition
    view = View(
        TABLES["comparisons"],
        project,
        address_of([[TableCondition(column=column, relation=relation, value=value)]]),
    )
    assert view.fault is not None
    assert (view.fault.code, view.lines) == (code, [])


def test_conditions_of_the_api_are_those_of_the_address():
    text = '[[{"column": "round", "is": "above", "to": 2}, {"column": "tags", "is": "missing"}]]'
    assert from_json(text) == [
        [
            TableCondition(column="round", relation="above", value="2"),
            TableCondition(column="tags", relation="missing"),
        ]
    ]
    assert from_query(address_of(from_json(text))) == from_json(text)
    for wrong in (
        "",
        "{}",
        "[{}]",
        '[[{"column": "round"}]]',
        '[[{"column": [], "is": "equals"}]]',
        "[[1]]",
        "[[]]",
    ):
        with refused("invalid_conditions"):
            from_json(wrong)
