"""Exports of tools in which people and programs rate responses: promptfoo and Open WebUI, in."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.utils.translation import gettext as _

from annotation.choices import RatingScale, Verdict
from annotation.exchange.formats import fields
from annotation.exchange.formats.columns import DESIRABLE
from annotation.exchange.formats.fields import FieldError, unknown_value
from annotation.exchange.formats.items import (
    ImportedCompletion,
    ImportedItem,
    ImportedJudgment,
    Reader,
    Row,
    RowPart,
    neighbours,
    ranks_by_place,
    verdict_of,
)
from annotation.record.judgment import CritiquePart, RatingPart

# promptfoo's results: in. A JSON file (`promptfoo export`, `-o x.json`), or one result a line (`x.jsonl`).
#
# From https://www.promptfoo.dev/docs/usage/web-ui and `src/types/index.ts` of promptfoo/promptfoo: a result
# has `prompt.raw`, `provider`, `response.output`, `testIdx`, and `gradingResult` with `pass`, `score`,
# `reason`, `comment` and `componentResults`, of which those with the assertion type `human` are a person's.
#
# The outputs of several providers for one prompt are compared together. A person's pass or fail is a thumb on
# the criterion `pass`, the comment a critique; what the assertions say is the judgment of a program.

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


def _survey(row: Row) -> Iterator[RowPart]:
    """Account for what the results hold."""
    try:
        results = _results(row) if "results" in row else [row]
    except FieldError:
        # Its reading raises the same error, which then names the row.
        return
    for result in results:
        if _output(result) is None:
            yield RowPart(
                "response.output", result.get("error") or "", "not_read", "the provider gave no output"
            )
            continue
        grading = result.get("gradingResult") or {}
        for part in grading.get("componentResults") or ():
            if isinstance(part, dict):
                kind = "a person's" if _is_human(part) else "a program's"
                yield RowPart(
                    "gradingResult.componentResults", part.get("pass"), "read", f"{kind} pass or fail"
                )
        if grading.get("comment"):
            yield RowPart("gradingResult.comment", grading["comment"], "read", "a critique of the response")
        if result.get("namedScores"):
            yield RowPart("namedScores", result["namedScores"], "not_read", "the parts of a score")


# Open WebUI's export of feedback (Admin Panel, Evaluations, Export): in.
#
# From `backend/open_webui/models/feedbacks.py` of https://github.com/open-webui/open-webui: an entry has
# `data`
# (`rating` 1 or -1, `model_id`, `sibling_model_ids`, `reason`, `comment`, `tags`, `details.rating` up to
# 10),
# `meta` (`message_id`, `arena`, …) and `snapshot.chat.chat`, the chat with all branches of its history.
#
# A rating is a thumb on the response. Where the chat holds responses of other models to the same message,
# it is
# a vote as well, as on Open WebUI's own leaderboard: 1 for the rated one against each of them, -1 against
# it.

_LONGEST = 500
"""Messages of a chat: one that names itself as its parent ends here."""


def _feedback(row: Row) -> Iterator[ImportedItem]:
    data = fields.object_of(fields.required(row, "data"), "data")
    meta = row.get("meta") or {}
    if data.get("rating") in (None, "", 0):
        return
    rating = fields.whole_number(fields.number(data["rating"]), "data.rating")
    if rating not in (1, -1):
        raise unknown_value(rating, (1, -1), "data.rating")
    history = _history(row)
    rated = _rated(history, meta)
    before = _before(history, rated)
    siblings = _siblings(history, rated, data)
    answers = [rated, *siblings]
    texts = [fields.text(answer.get("content"), "snapshot.chat") for answer in answers]
    best, other = (1, 2) if rating == 1 else (2, 1)
    ranks = (best, *(other for _ in siblings)) if siblings else ()
    yield ImportedItem(
        messages=fields.prompt(before, "snapshot.chat"),
        completions=tuple(
            ImportedCompletion(text=text, source=_webui_source(answer, data if answer is rated else {}))
            for text, answer in zip(texts, answers, strict=True)
        ),
        judgments=(
            ImportedJudgment(
                verdict=verdict_of(ranks) if ranks else Verdict.NOT_ASKED,
                ranks=ranks_by_place(ranks),
                annotator=fields.person(row.get("user_id"), "user_id"),
                comment="\n\n".join(
                    text
                    for name in ("reason", "comment")
                    if (text := fields.optional_text(data.get(name), f"data.{name}"))
                ),
                ratings=(
                    RatingPart(
                        completion="0", criterion=DESIRABLE, scale=RatingScale.THUMBS, value=int(rating == 1)
                    ),
                ),
                created_at=fields.moment(row.get("created_at"), "created_at"),
            ),
        ),
        metadata={
            k: v
            for k, v in meta.items()
            if k not in ("message_id", "message_index") and v not in (None, [], {})
        },
    )


def _history(row: Row) -> dict[str, Mapping[str, Any]]:
    """The messages of the chat by their ids."""
    chat: Any = row.get("snapshot")
    for _level in range(3):
        if isinstance(chat, dict) and isinstance(chat.get("history"), dict):
            messages = chat["history"].get("messages")
            if isinstance(messages, dict):
                return {key: each for key, each in messages.items() if isinstance(each, dict)}
        chat = chat.get("chat") if isinstance(chat, dict) else None
    raise FieldError(
        "chat_missing",
        _("There is no chat here. Export from the list of all feedback, which includes the chats."),
        field="snapshot",
    )


def _rated(history: Mapping[str, Mapping[str, Any]], meta: Mapping[str, Any]) -> Mapping[str, Any]:
    rated = history.get(str(meta.get("message_id")))
    if rated is None or rated.get("role") != "assistant":
        raise FieldError(
            "message_not_there", _("No response of the chat has this id."), field="meta.message_id"
        )
    return rated


def _before(history: Mapping[str, Mapping[str, Any]], message: Mapping[str, Any]) -> list[dict[str, Any]]:
    chat: list[dict[str, Any]] = []
    parent = message.get("parentId")
    while parent is not None and len(chat) < _LONGEST:
        node = history.get(str(parent))
        if node is None:
            raise FieldError(
                "message_not_there",
                _("The chat lacks a message that its responses name as their parent."),
                field="snapshot.chat",
            )
        chat.insert(0, {"role": node.get("role"), "content": node.get("content")})
        parent = node.get("parentId")
    return chat


def _siblings(
    history: Mapping[str, Mapping[str, Any]], rated: Mapping[str, Any], data: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """Responses of other models to the same message; none where the feedback names no sibling."""
    models = {str(model) for model in data.get("sibling_model_ids") or ()}
    if not models:
        return []
    siblings: dict[str, Mapping[str, Any]] = {}
    for node in history.values():
        model = _webui_source(node, {})
        is_beside = node is not rated and node.get("parentId") == rated.get("parentId")
        if is_beside and node.get("role") == "assistant" and node.get("content") and model in models:
            siblings[model] = node
    return list(siblings.values())


def _webui_source(message: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    # In the arena a message has the model that was drawn for it as its selected one.
    named = data.get("model_id") or message.get("selectedModelId") or message.get("model")
    return fields.optional_text(named, "model")


def _webui_survey(row: Row) -> Iterator[RowPart]:
    """Account for feedback without a rating."""
    data = row.get("data")
    if not isinstance(data, dict) or data.get("rating") in (None, "", 0):
        yield RowPart("data.rating", "none", "not_read", "feedback without a rating is no annotation")


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
    Reader(
        name="open-webui",
        sentence="Open WebUI's feedback: thumbs, and votes between models, with their chats.",
        read=_feedback,
        matches=lambda row: (
            {"snapshot", "data", "meta"} <= row.keys()
            and isinstance(row["data"], dict)
            and ("rating" in row["data"] or "model_id" in row["data"])
        ),
        reads={
            "data": "the feedback",
            "data.rating": "a thumb, and a vote against the other responses",
            "data.model_id": "the source of the response",
            "data.sibling_model_ids": "the sources of the other responses",
            "data.reason": "the annotator's comment",
            "data.comment": "the annotator's comment",
            "meta": "the response that is rated, and metadata",
            "snapshot": "the prompt and the responses",
            "user_id": "the annotator",
            "created_at": "the time of the annotation",
        },
        ignores={
            "updated_at": "the time of the annotation is read",
            "version": "bookkeeping of Open WebUI",
            "type": "all feedback is a rating",
            "user": "the annotator is read",
        },
        survey=_webui_survey,
        loses="branches of chats that nobody rated, files, sources of retrieval",
    ),
)
