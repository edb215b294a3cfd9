"""Open WebUI's export of feedback (Admin Panel, Evaluations, Export): in.

From `backend/open_webui/models/feedbacks.py` of https://github.com/open-webui/open-webui: an entry has `data`
(`rating` 1 or -1, `model_id`, `sibling_model_ids`, `reason`, `comment`, `tags`, `details.rating` up to 10),
`meta` (`message_id`, `arena`, …) and `snapshot.chat.chat`, the chat with all branches of its history.

A rating is a thumb on the response. Where the chat holds responses of other models to the same message, it is
a vote as well, as on Open WebUI's own leaderboard: 1 for the rated one against each of them, -1 against it.
"""

from collections.abc import Iterator, Mapping
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
    Part,
    Reader,
    Row,
    ranks_by_place,
    verdict_of,
)
from annotation.record.judgment import RatingPart

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
            ImportedCompletion(text=text, source=_source(answer, data if answer is rated else {}))
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
        model = _source(node, {})
        is_beside = node is not rated and node.get("parentId") == rated.get("parentId")
        if is_beside and node.get("role") == "assistant" and node.get("content") and model in models:
            siblings[model] = node
    return list(siblings.values())


def _source(message: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    # In the arena a message has the model that was drawn for it as its selected one.
    named = data.get("model_id") or message.get("selectedModelId") or message.get("model")
    return fields.optional_text(named, "model")


def _survey(row: Row) -> Iterator[Part]:
    """Account for feedback without a rating."""
    data = row.get("data")
    if not isinstance(data, dict) or data.get("rating") in (None, "", 0):
        yield Part("data.rating", "none", "not_read", "feedback without a rating is no annotation")


READERS = (
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
        survey=_survey,
        loses="branches of chats that nobody rated, files, sources of retrieval",
    ),
)
