"""OpenAssistant conversations: in, as trees (`.trees.jsonl`) and as flat messages (`.messages.jsonl`).

From https://github.com/LAION-AI/Open-Assistant/tree/main/oasst-data: a tree has `message_tree_id` and
`prompt`; a message has `message_id`, `parent_id`, `text`, `role` (`prompter` or `assistant`) and
`replies`. Replies to one message may have a `rank`, 0 the best. In flat files the messages of one tree
stand together and begin with its root.

Every question with two or more ranked replies is one ranking, by all of its rankers together. A question
with one reply alone has it as its reference. Deleted messages, and what was found to be spam, are left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.utils.translation import gettext as _

from annotation.exchange.formats import fields
from annotation.exchange.formats.fields import FieldError, unknown_value
from annotation.exchange.formats.items import (
    ImportedCompletion,
    ImportedItem,
    ImportedJudgment,
    Part,
    Reader,
    Row,
    dense,
    ranks_by_place,
    verdict_of,
)

_ROLES = {"prompter": "user", "assistant": "assistant"}
_DEEPEST = 200


def _trees(row: Row) -> Iterator[ImportedItem]:
    root = fields.object_of(fields.required(row, "prompt"), "prompt")
    tree = str(row.get("message_tree_id") or root.get("message_id") or "")
    # No recursion: a tree may be as deep as its file says.
    open_: list[tuple[Mapping[str, Any], list[dict[str, str]]]] = [(root, [])]
    while open_:
        node, before = open_.pop()
        chat = [*before, _message(node)]
        if len(chat) > _DEEPEST:
            raise FieldError(
                "nested_too_deeply",
                _("The tree is deeper than %(most)s messages."),
                field="replies",
                most=_DEEPEST,
            )
        replies = [
            reply
            for value in fields.items_of(node.get("replies"), "replies")
            if _stands(reply := fields.object_of(value, "replies"))
        ]
        if chat[-1]["role"] == "user" and replies:
            yield _question(chat, replies, tree)
        elif not before and not replies:
            yield ImportedItem(messages=fields.prompt(chat, "prompt"))
        open_ += [(reply, chat) for reply in reversed(replies)]


def _message(node: Mapping[str, Any]) -> dict[str, str]:
    role = node.get("role")
    if role not in _ROLES:
        raise unknown_value(role, _ROLES, "role")
    return {"role": _ROLES[role], "content": fields.text(node.get("text"), "text")}


def _stands(node: Mapping[str, Any]) -> bool:
    return not node.get("deleted") and node.get("review_result") is not False


def _question(chat: list[dict[str, str]], replies: Sequence[Mapping[str, Any]], tree: str) -> ImportedItem:
    messages = fields.prompt(chat, "prompt")
    ranked = [reply for reply in replies if reply.get("rank") is not None]
    if len(ranked) < 2:
        return ImportedItem(messages=messages, references=[_message(reply)["content"] for reply in replies])
    ranks = dense([fields.whole_number(reply["rank"], "rank") for reply in ranked])
    more: dict[str, Any] = {"message_tree_id": tree}
    if len(ranked) < len(replies):
        more["unranked_replies"] = len(replies) - len(ranked)
    times = [
        moment for reply in ranked if (moment := fields.moment(reply.get("created_date"), "created_date"))
    ]
    return ImportedItem(
        messages=messages,
        completions=tuple(
            ImportedCompletion(
                text=_message(reply)["content"],
                source=fields.optional_text(reply.get("model_name"), "model_name")[:120],
            )
            for reply in ranked
        ),
        judgments=(
            ImportedJudgment(
                verdict=verdict_of(ranks),
                ranks=ranks_by_place(ranks),
                more=more,
                created_at=max(times, default=""),
            ),
        ),
    )


def _joined(rows: Iterator[tuple[int, Row]]) -> Iterator[tuple[int, Row]]:
    """Flat messages as trees: one row for the messages that stand together with one `message_tree_id`.

    The metadata of a tree is that of its root, under `rows`.
    """
    waiting: dict[str, dict[str, Any]] = {}
    tree, first = None, 0
    root: dict[str, Any] | None = None
    for number, row in rows:
        if "replies" in row or "prompt" in row:
            yield number, row
            continue
        if row.get("message_tree_id") != tree or root is None:
            if root is not None:
                yield first, {"message_tree_id": tree, "prompt": root, "rows": [root]}
            tree, first, root, waiting = row.get("message_tree_id"), number, None, {}
        node = {**row, "replies": []}
        waiting[str(row.get("message_id"))] = node
        parent = row.get("parent_id")
        if parent is None:
            root = node
        elif str(parent) in waiting:
            waiting[str(parent)]["replies"].append(node)
    if root is not None:
        yield first, {"message_tree_id": tree, "prompt": root, "rows": [root]}


_UNREAD = {
    "labels": "labels of single messages, by several people together",
    "emojis": "emojis of single messages",
    "detoxify": "a program's scores of single messages",
    "user_id": "the author of a single message",
    "review_count": "bookkeeping of OpenAssistant",
    "synthetic": "the source of a reply says it",
    "events": "bookkeeping of OpenAssistant",
}


def _survey(row: Row) -> Iterator[Part]:
    """Account for what the messages of a tree hold besides."""
    root = row.get("prompt")
    nodes = [root] if isinstance(root, dict) else []
    while nodes:
        node = nodes.pop()
        for name in node.keys() & _UNREAD.keys():
            if node[name] not in (None, "", [], {}, False):
                yield Part(f"prompt.{name}", node[name], "not_read", _UNREAD[name])
        if node.get("deleted") or node.get("review_result") is False:
            yield Part("prompt.deleted", True, "not_read", "a message that was deleted, or found to be spam")
        replies = node.get("replies")
        nodes += [reply for reply in replies if isinstance(reply, dict)] if isinstance(replies, list) else []


READERS = (
    Reader(
        name="openassistant",
        sentence="OpenAssistant trees, or their flat messages: every question with its ranked replies.",
        read=_trees,
        matches=lambda row: "message_tree_id" in row and ("prompt" in row or "message_id" in row),
        group=_joined,
        reads={
            "message_tree_id": "the tree to which a message belongs",
            "prompt": "the tree of messages",
            "message_id": "the place of a message in its tree",
            "parent_id": "the place of a message in its tree",
            "text": "a message",
            "role": "who wrote a message",
            "replies": "the replies to a message",
            "rank": "the rank of a reply, 0 the best",
            "created_date": "the time of the annotation: when the last ranked reply was written",
            "model_name": "the source of a reply",
            "deleted": "whether a message is left out",
            "review_result": "whether a message is left out, as spam",
        },
        ignores=_UNREAD,
        survey=_survey,
        loses="labels of single messages, emojis, scores of toxicity, authors, deleted messages",
    ),
)
