"""Published sets of comparisons: HH-RLHF, summarize-from-feedback, UltraFeedback, OpenAssistant."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.utils.translation import gettext as _

from annotation.choices import RatingScale, Verdict
from annotation.exchange.formats import fields
from annotation.exchange.formats.columns import VERDICT_LIKE, words_of
from annotation.exchange.formats.fields import FieldError, excerpt, unknown_value
from annotation.exchange.formats.items import (
    ImportedCompletion,
    ImportedItem,
    ImportedJudgment,
    Kind,
    Reader,
    Row,
    RowPart,
    dense,
    key_of,
    ranks_by_place,
    verdict_of,
)
from annotation.exchange.formats.tables import JUDGMENT_READS
from annotation.exchange.formats.trl import preference
from annotation.exchange.formats.writers import (
    Dropped,
    Record,
    Scene,
    Writer,
    Written,
    answer_messages,
    pairs,
)
from annotation.record.judgment import CritiquePart, RatingPart

# HH-RLHF transcripts (Bai et al. 2022; https://github.com/anthropics/hh-rlhf): in and out.
#
# `chosen` and `rejected` are texts `\n\nHuman: … \n\nAssistant: …` that share all but the last turn. A
# handful of the published ones begin to differ earlier; those are refused, for no prompt is answered by both.
#
# A transcript has no system turn and cannot escape a turn's mark inside a message. A pair with either is
# dropped, with its reason. White space around a message belongs to the marks: it is neither written nor read.

_TURN = re.compile(r"\n\n(Human|Assistant): ?")
_ROLE = {"Human": "user", "Assistant": "assistant"}
_SPEAKER = {role: speaker for speaker, role in _ROLE.items()}


def transcript(value: Any, where: str) -> list[dict[str, str]]:
    """The turns of a transcript `\\n\\nHuman: … \\n\\nAssistant: …`; each text without its outer space."""
    parts = _TURN.split(fields.text(value, where))
    if parts[0].strip() or len(parts) < 3:
        raise FieldError(
            "transcript_invalid", _("The text does not begin with a turn '\\n\\nHuman: …'."), field=where
        )
    return [
        {"role": _ROLE[speaker], "content": text.strip()}
        for speaker, text in zip(parts[1::2], parts[2::2], strict=True)
    ]


def _hh_rlhf(row: Row) -> Iterator[ImportedItem]:
    chosen = transcript(fields.required(row, "chosen"), "chosen")
    rejected = transcript(fields.required(row, "rejected"), "rejected")
    if chosen[:-1] != rejected[:-1]:
        raise FieldError(
            "questions_differ",
            _(
                "The text differs from chosen before the last turn, so the two do not answer the same "
                "question."
            ),
            field="rejected",
        )
    texts = []
    for where, turns in (("chosen", chosen), ("rejected", rejected)):
        if turns[-1]["role"] != "assistant":
            raise FieldError(
                "answer_missing", _("The text does not end with a turn of the assistant."), field=where
            )
        texts.append(fields.text(turns[-1]["content"], where))
    messages = [message for message in chosen[:-1] if message["content"]]
    prompt = fields.with_system(row.get("system"), fields.prompt(messages, "chosen"))
    yield preference(row, prompt, texts[0], texts[1])


def _spelled(chat: Sequence[dict[str, str]]) -> str | None:
    """The chat as a transcript; None where it would not be read as the same chat."""
    turns = [{**message, "content": message["content"].strip()} for message in chat]
    if not all(turn["content"] for turn in turns):
        return None
    text = "".join(f"\n\n{_SPEAKER[turn['role']]}: {turn['content']}" for turn in turns)
    return text if transcript(text, "messages") == turns else None


def _rows(record: Record, scene: Scene) -> Written:
    messages = record["messages"]
    if any(message["role"] not in _SPEAKER for message in messages):
        yield Dropped("a transcript has turns of Human and Assistant alone, no system message")
        return
    for pair in pairs(record):
        if isinstance(pair, Dropped):
            yield pair
            continue
        chosen, rejected = (
            _spelled([*messages, *answer_messages(completion["text"])]) for completion in pair
        )
        if chosen is None or rejected is None:
            yield Dropped("a message holds the mark of a turn, “Human:” or “Assistant:” after an empty line")
        elif chosen == rejected:
            yield Dropped("the two differ in the white space around them alone")
        else:
            yield {"chosen": chosen, "rejected": rejected}


# OpenAI's summarize-from-feedback (Stiennon et al. 2020): comparisons and axis evaluations, in.
#
# From https://github.com/openai/summarize-from-feedback: a comparison has `info` (`post`, `title`,
# `subreddit`,
# or `article`), two `summaries` (`text`, `policy`, `note`), `choice` (0 the first, 1 the second), `worker`
# and
# `extra.confidence`. An axis evaluation has one `summary` with `axes`, ratings from 1 to 7.


def _summaries(row: Row) -> Iterator[ImportedItem]:
    info = fields.object_of(fields.required(row, "info"), "info")
    if "summaries" in row:
        listed = fields.items_of(row["summaries"], "summaries")
    else:
        listed = [fields.required(row, "summary")]
    summaries = [fields.object_of(each, f"summaries[{number}]") for number, each in enumerate(listed)]
    notes = [fields.optional_text(each.get("note"), "summaries.note").strip() for each in summaries]
    subreddit = fields.optional_text(info.get("subreddit"), "info.subreddit")
    extra = row.get("extra") if isinstance(row.get("extra"), dict) else {}
    yield ImportedItem(
        messages=fields.prompt(_prompt(info), "info.post"),
        tags=[subreddit] if subreddit else [],
        completions=tuple(
            ImportedCompletion(
                text=fields.text(each.get("text"), f"summaries[{number}].text").strip(),
                source=fields.optional_text(each.get("policy"), f"summaries[{number}].policy"),
            )
            for number, each in enumerate(summaries)
        ),
        judgments=(
            ImportedJudgment(
                verdict=Verdict.RANKED if "summaries" in row else Verdict.NOT_ASKED,
                ranks=ranks_by_place(_ranks(row, len(summaries))) if "summaries" in row else {},
                annotator=fields.person(row.get("worker"), "worker"),
                ratings=tuple(_axes(summaries[0])) if "summaries" not in row else (),
                critiques=tuple(
                    CritiquePart(completion=str(place), text=note) for place, note in enumerate(notes) if note
                ),
                more={name: value for name, value in (extra or {}).items() if value is not None},
            ),
        ),
        metadata={
            name: value
            for name, value in info.items()
            if name not in ("post", "article", "title", "subreddit") and value not in (None, "")
        },
    )


def _prompt(info: Mapping[str, Any]) -> str:
    title = fields.optional_text(info.get("title"), "info.title").strip()
    body = fields.text(info.get("post") or info.get("article"), "info.post").strip()
    return f"{title}\n\n{body}" if title else body


def _ranks(row: Row, count: int) -> tuple[int, ...]:
    choice = fields.whole_number(fields.required(row, "choice"), "choice")
    if count != 2 or choice not in (0, 1):
        raise FieldError(
            "value_unknown",
            _("%(value)s is neither 0, the first summary, nor 1, the second."),
            field="choice",
            value=excerpt(choice),
        )
    return (1, 2) if choice == 0 else (2, 1)


def _axes(summary: Mapping[str, Any]) -> Iterator[RatingPart]:
    for name, value in fields.object_of(summary.get("axes") or {}, "summary.axes").items():
        if value is not None:
            yield RatingPart(
                completion="0",
                criterion=key_of(name),
                scale=RatingScale.SEVEN,
                value=fields.whole_number(value, f"summary.axes.{name}"),
            )


# UltraFeedback (Cui et al. 2023; https://github.com/OpenBMB/UltraFeedback): in.
#
# `instruction`, `completions` with `response`, `model`, `annotations` (a `Rating` from 1 to 5 or "N/A" on
# each
# of four aspects) and `critique`. GPT-4 judged, so the judgment is a program's. The ranking is by the mean
# of
# the four ratings: `overall_score` was wrong in the first release (issue 8 there).

_ASPECTS = ("helpfulness", "honesty", "instruction_following", "truthfulness")


def _ultrafeedback(row: Row) -> Iterator[ImportedItem]:
    listed = fields.items_of(fields.required(row, "completions"), "completions")
    completions, ratings, critiques, means = [], [], [], []
    for number, value in enumerate(listed):
        where = f"completions[{number}]"
        completion = fields.object_of(value, where)
        completions.append(
            ImportedCompletion(
                text=fields.text(completion.get("response"), f"{where}.response"),
                source=fields.optional_text(completion.get("model"), f"{where}.model"),
            )
        )
        aspect_ratings = _aspects(number, completion, where)
        ratings += aspect_ratings
        means.append(
            sum(rating.value for rating in aspect_ratings) / len(aspect_ratings) if aspect_ratings else None
        )
        if critique := fields.optional_text(completion.get("critique"), f"{where}.critique").strip():
            critiques.append(CritiquePart(completion=str(number), text=critique))
    rated = all(mean is not None for mean in means) and len(completions) > 1
    ranks = dense([-float(mean or 0) for mean in means]) if rated else ()
    judgment = ImportedJudgment(
        verdict=verdict_of(ranks) if rated else Verdict.NOT_ASKED,
        ranks=ranks_by_place(ranks),
        annotator="gpt-4",
        is_machine=True,
        ratings=tuple(ratings),
        critiques=tuple(critiques),
    )
    tags = [row["source"]] if isinstance(row.get("source"), str) and row["source"] else []
    yield ImportedItem(
        messages=fields.prompt(fields.required(row, "instruction"), "instruction"),
        references=[answer for answer in row.get("correct_answers") or [] if _is_answer(answer)],
        tags=tags,
        completions=tuple(completions),
        judgments=(judgment,) if completions else (),
    )


def _is_answer(value: Any) -> bool:
    return isinstance(value, str) and value.strip() not in ("", "None")


def _aspects(number: int, completion: Mapping[str, Any], where: str) -> list[RatingPart]:
    annotations = completion.get("annotations") or {}
    ratings = []
    for aspect in _ASPECTS:
        annotation = annotations.get(aspect)
        value = annotation.get("Rating") if isinstance(annotation, dict) else None
        if value is None or str(value).strip().upper() == "N/A":
            continue
        if str(value).strip() not in ("1", "2", "3", "4", "5"):
            raise fields.out_of_range(value, 1, 5, f"{where}.annotations.{aspect}.Rating")
        ratings.append(
            RatingPart(
                completion=str(number), criterion=key_of(aspect), scale=RatingScale.FIVE, value=int(value)
            )
        )
    return ratings


_UNREAD = {
    "overall_score": "the mean of the four ratings ranks; this was wrong in the first release",
    "fine-grained_score": "it is the mean of the four ratings, which are read",
    "principle": "a part of how the completion was sampled",
    "custom_system_prompt": "a part of how the completion was sampled",
}


def _survey(row: Row) -> Iterator[RowPart]:
    """Account for what completions hold besides."""
    for completion in row.get("completions") or ():
        for name, value in completion.items() if isinstance(completion, dict) else ():
            if name in _UNREAD and value not in (None, ""):
                yield RowPart(f"completions[].{name}", value, "not_read", _UNREAD[name])
            elif name == "annotations" and isinstance(value, dict):
                for aspect, annotation in value.items():
                    if aspect not in _ASPECTS:
                        reason = f"Rondo reads {', '.join(_ASPECTS)}"
                        yield RowPart(f"completions[].annotations.{aspect}", annotation, "question", reason)
                    elif isinstance(annotation, dict) and "Rationale" in annotation:
                        name = "completions[].annotations.*.Rationale"
                        yield RowPart(name, annotation["Rationale"], "not_read", "the critique is read")
            elif name not in ("response", "model", "critique", "annotations") and value not in (None, ""):
                is_verdict = bool(VERDICT_LIKE.search(words_of(name)))
                kind: Kind = "question" if is_verdict else "not_read"
                yield RowPart(f"completions[].{name}", value, kind, "UltraFeedback does not have it")


# OpenAssistant conversations: in, as trees (`.trees.jsonl`) and as flat messages (`.messages.jsonl`).
#
# From https://github.com/LAION-AI/Open-Assistant/tree/main/oasst-data: a tree has `message_tree_id` and
# `prompt`; a message has `message_id`, `parent_id`, `text`, `role` (`prompter` or `assistant`) and
# `replies`. Replies to one message may have a `rank`, 0 the best. In flat files the messages of one tree
# stand together and begin with its root.
#
# Every question with two or more ranked replies is one ranking, by all of its rankers together. A question
# with one reply alone has it as its reference. Deleted messages, and what was found to be spam, are left
# out.

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


_TREE_UNREAD = {
    "labels": "labels of single messages, by several people together",
    "emojis": "emojis of single messages",
    "detoxify": "a program's scores of single messages",
    "user_id": "the author of a single message",
    "review_count": "bookkeeping of OpenAssistant",
    "synthetic": "the source of a reply says it",
    "events": "bookkeeping of OpenAssistant",
}


def _tree_survey(row: Row) -> Iterator[RowPart]:
    """Account for what the messages of a tree hold besides."""
    root = row.get("prompt")
    nodes = [root] if isinstance(root, dict) else []
    while nodes:
        node = nodes.pop()
        for name in node.keys() & _TREE_UNREAD.keys():
            if node[name] not in (None, "", [], {}, False):
                yield RowPart(f"prompt.{name}", node[name], "not_read", _TREE_UNREAD[name])
        if node.get("deleted") or node.get("review_result") is False:
            yield RowPart(
                "prompt.deleted", True, "not_read", "a message that was deleted, or found to be spam"
            )
        replies = node.get("replies")
        nodes += [reply for reply in replies if isinstance(reply, dict)] if isinstance(replies, list) else []


READERS = (
    Reader(
        name="hh-rlhf",
        sentence="HH-RLHF transcripts: chosen and rejected as “Human: … Assistant: …”.",
        read=_hh_rlhf,
        matches=lambda row: (
            "prompt" not in row and isinstance(row.get("chosen"), str) and "\n\nHuman:" in row["chosen"]
        ),
        is_tabular=True,
        reads={
            **JUDGMENT_READS,
            "system": "the system message",
            "context": "a context passage",
            "reference": "a reference answer",
            "tag": "a tag of the prompt",
            "chosen": "the prompt and the better response",
            "rejected": "the prompt and the other response",
            "source_chosen": "the source of the better response",
            "source_rejected": "the source of the other response",
        },
        loses="white space around messages",
    ),
    Reader(
        name="summarize-from-feedback",
        sentence="OpenAI's summarize-from-feedback: two summaries and a choice, or one with ratings on axes.",
        read=_summaries,
        matches=lambda row: (
            isinstance(row.get("info"), dict)
            and (
                {"summaries", "choice"} <= row.keys()
                or (isinstance(row.get("summary"), dict) and "axes" in row["summary"])
            )
        ),
        reads={
            "info": "the prompt, its title first, and metadata",
            "summaries": "the responses, with notes",
            "summary": "the response, with ratings and a note",
            "choice": "the preference, counted from 0",
            "worker": "the annotator",
            "extra": "kept with the annotation",
        },
        completion_fields=("summaries[0]", "summaries[1]"),
    ),
    Reader(
        name="ultrafeedback",
        sentence="UltraFeedback: four completions with ratings and critiques by GPT-4.",
        read=_ultrafeedback,
        matches=lambda row: "instruction" in row and isinstance(row.get("completions"), list),
        reads={
            "instruction": "the prompt",
            "completions": "the responses, with ratings and critiques",
            "source": "a tag of the prompt",
            "correct_answers": "reference answers",
        },
        keeps=frozenset({"incorrect_answers"}),
        ignores={"models": "each completion names its model"},
        completion_fields=tuple(f"completions[{number}]" for number in range(10)),
        survey=_survey,
        loses="rationales, principles, system prompts, overall scores",
    ),
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
        ignores=_TREE_UNREAD,
        survey=_tree_survey,
        loses="labels of single messages, emojis, scores of toxicity, authors, deleted messages",
    ),
)


WRITERS = (
    Writer(
        name="hh-rlhf",
        sentence="HH-RLHF transcripts of decided pairs: chosen and rejected as “Human: … Assistant: …”.",
        container="jsonl",
        rows=_rows,
        carries="decided pairs",
        loses="system messages, messages that hold a turn's marker, white space around messages",
    ),
)
