"""promptfoo's results: in. A JSON file (`promptfoo export`, `-o x.json`), or one result a line (`x.jsonl`).

From https://www.promptfoo.dev/docs/usage/web-ui and `src/types/index.ts` of promptfoo/promptfoo: a result has
`prompt.raw`, `provider`, `response.output`, `testIdx`, and `gradingResult` with `pass`, `score`, `reason`,
`comment` and `componentResults`, of which those with the assertion type `human` are a person's.

The outputs of several providers for one prompt are compared together. A person's pass or fail is a thumb on
the criterion `pass`, the comment a critique; what the assertions say is the judgment of a program.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.utils.translation import gettext as _

from annotation.choices import RatingScale, Verdict
from annotation.exchange.formats import fields
from annotation.exchange.formats.fields import FieldError
from annotation.exchange.formats.items import (
    ImportedCompletion,
    ImportedItem,
    ImportedJudgment,
    Part,
    Reader,
    Row,
    neighbours,
)
from annotation.record.judgment import CritiquePart, RatingPart

_CRITERION = "pass"
_PROGRAM = "promptfoo"
Result = Mapping[str, Any]


def _items(row: Row) -> Iterator[ImportedItem]:
    together: dict[tuple[str, str], list[Result]] = {}
    for result in _results(row):
        if _output(result) is not None:
            key = (str(result.get("testIdx")), _raw(result))
            together.setdefault(key, []).append(result)
    for (_test, raw), results in together.items():
        yield _item(raw, list(_different(results)))


def _results(row: Row) -> list[Result]:
    """The results of a file, or those of its lines that belong together."""
    if "rows" in row:
        return list(row["rows"])
    listed = row.get("results")
    if isinstance(listed, dict):
        listed = listed.get("results")
    if not isinstance(listed, list):
        raise FieldError(
            "list_expected",
            _("There is no list of results here. Export with promptfoo 0.80 or newer."),
            field="results",
        )
    return [fields.object_of(each, f"results[{number}]") for number, each in enumerate(listed)]


def _different(results: Sequence[Result]) -> Iterator[Result]:
    """The results without repetitions of one provider's text: a text is not compared with itself."""
    seen = set()
    for result in results:
        key = (_output(result), _source(result))
        if key not in seen:
            seen.add(key)
            yield result


def _item(raw: str, results: Sequence[Result]) -> ImportedItem:
    judgments = (_judgment(results, is_machine=False), _judgment(results, is_machine=True))
    variables = results[0].get("vars") or {}
    return ImportedItem(
        messages=fields.prompt(raw, "prompt.raw"),
        completions=tuple(
            ImportedCompletion(text=_output(result) or "", source=_source(result)) for result in results
        ),
        judgments=tuple(judgment for judgment in judgments if judgment is not None),
        metadata={"vars": variables} if variables else {},
    )


def _judgment(results: Sequence[Result], *, is_machine: bool) -> ImportedJudgment | None:
    """What a person, or the assertions, say of the outputs; None where they say nothing."""
    ratings, critiques, scores = [], [], {}
    for place, result in enumerate(results):
        grading = result.get("gradingResult") or {}
        parts = [part for part in grading.get("componentResults") or () if isinstance(part, dict)]
        of_kind = [part for part in parts if _is_human(part) != is_machine]
        if of_kind:
            passed = all(part.get("pass") is True for part in of_kind)
            ratings.append(
                RatingPart(
                    completion=str(place), criterion=_CRITERION, scale=RatingScale.THUMBS, value=int(passed)
                )
            )
        comment = grading.get("comment") if not is_machine else "\n".join(_reasons(of_kind))
        if comment := fields.optional_text(comment, "gradingResult.comment").strip():
            critiques.append(CritiquePart(completion=str(place), text=comment))
        if is_machine and of_kind and isinstance(result.get("score"), (int, float)):
            scores[str(place + 1)] = result["score"]
    if not ratings and not critiques:
        return None
    return ImportedJudgment(
        verdict=Verdict.NOT_ASKED,
        annotator=_PROGRAM if is_machine else "",
        is_machine=is_machine,
        ratings=tuple(ratings),
        critiques=tuple(critiques),
        more={"scores": scores} if scores else {},
    )


def _is_human(part: Mapping[str, Any]) -> bool:
    assertion = part.get("assertion")
    return isinstance(assertion, dict) and assertion.get("type") == "human"


def _reasons(parts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Why assertions failed."""
    for part in parts:
        if part.get("pass") is not True and isinstance(part.get("reason"), str):
            yield part["reason"]


def _raw(result: Result) -> str:
    prompt = result.get("prompt")
    return fields.text(prompt.get("raw") if isinstance(prompt, dict) else prompt, "prompt.raw")


def _output(result: Result) -> str | None:
    """The text of an output; None where the provider failed."""
    response = result.get("response")
    output = response.get("output") if isinstance(response, dict) else response
    if output in (None, ""):
        return None
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)


def _source(result: Result) -> str:
    provider = result.get("provider")
    if isinstance(provider, dict):
        provider = provider.get("label") or provider.get("id")
    return fields.optional_text(provider, "provider")[:120]


def _joined(rows: Iterator[tuple[int, Row]]) -> Iterator[tuple[int, Row]]:
    """One row for the lines that stand together with one test and one prompt."""

    def test_of(row: Row) -> tuple[Any, str] | None:
        if "results" in row:
            return None
        return row.get("testIdx"), json.dumps(row.get("prompt"), sort_keys=True)

    for first, key, together in neighbours(rows, test_of):
        yield first, together[0] if key is None else {"rows": together}


def _survey(row: Row) -> Iterator[Part]:
    """Account for what the results hold."""
    try:
        results = _results(row) if "results" in row else [row]
    except FieldError:
        # Its reading raises the same error, which then names the row.
        return
    for result in results:
        if _output(result) is None:
            yield Part(
                "response.output", result.get("error") or "", "not_read", "the provider gave no output"
            )
            continue
        grading = result.get("gradingResult") or {}
        for part in grading.get("componentResults") or ():
            if isinstance(part, dict):
                kind = "a person's" if _is_human(part) else "a program's"
                yield Part("gradingResult.componentResults", part.get("pass"), "read", f"{kind} pass or fail")
        if grading.get("comment"):
            yield Part("gradingResult.comment", grading["comment"], "read", "a critique of the response")
        if result.get("namedScores"):
            yield Part("namedScores", result["namedScores"], "not_read", "the parts of a score")


READERS = (
    Reader(
        name="promptfoo",
        sentence="promptfoo's results: outputs with the pass or fail of a person and of assertions.",
        read=_items,
        matches=lambda row: (
            (isinstance(row.get("results"), dict) and ("evalId" in row or "results" in row["results"]))
            or {"promptIdx", "testIdx", "response"} <= row.keys()
        ),
        group=_joined,
        reads={
            "results": "the results",
            "prompt": "the prompt",
            "response": "the response",
            "provider": "the source of the response",
            "gradingResult": "ratings and critiques of the response",
            "score": "kept with the annotation of the assertions",
            "testIdx": "the outputs that are compared",
            "vars": "metadata of the comparison",
        },
        ignores={
            "config": "the configuration of the evaluation",
            "shareableUrl": "a link",
            "evalId": "an id of promptfoo",
            "success": "the pass or fail of a result says it",
            "namedScores": "the parts of a score",
            "promptIdx": "the prompt says it",
            "promptId": "an id of promptfoo",
            "testCase": "the configuration of the evaluation",
            **dict.fromkeys(
                ("latencyMs", "cost", "tokenUsage", "failureReason", "error"), "about the provider"
            ),
        },
        survey=_survey,
        loses="named scores, costs, outputs of providers that failed",
    ),
)
