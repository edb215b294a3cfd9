"""Preference data of training libraries: TRL, OpenAI, LLaMA-Factory, OpenRLHF and verl.

TRL's dataset types, standard (texts) and conversational (messages), come in and go out.

From https://huggingface.co/docs/trl/dataset_formats:

| type                | columns                                             |
|---------------------|-----------------------------------------------------|
| preference          | `prompt`, `chosen`, `rejected`                      |
| preference, implicit prompt | `chosen`, `rejected`, which share a beginning |
| unpaired preference | `prompt`, `completion`, `label` (true or false)     |
| prompt-only         | `prompt`                                            |
| prompt-completion   | `prompt`, `completion`                              |
| stepwise supervision | `prompt`, `completions` (steps), `labels`          |

A label of an unpaired row is a thumb on the criterion `desirable`. Steps are joined by a line feed,
TRL's own separator for them, and each is marked `correct-step` or `wrong-step`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from django.utils.translation import gettext as _

from annotation.choices import Polarity, RatingScale, Verdict
from annotation.exchange.formats import fields
from annotation.exchange.formats.columns import DESIRABLE, RATING
from annotation.exchange.formats.fields import FieldError, missing_field
from annotation.exchange.formats.items import (
    ImportedCompletion,
    ImportedItem,
    ImportedJudgment,
    Reader,
    Row,
    RowPart,
    span_at,
)
from annotation.exchange.formats.tables import (
    JUDGMENT_READS,
    PROMPT_READS,
    judgment_parts,
    prompt_parts,
    ratings_of,
)
from annotation.exchange.formats.writers import (
    NO_ORDER,
    UNORDERED,
    Dropped,
    Record,
    Scene,
    Writer,
    Written,
    answer_messages,
    pairs,
    segments,
)
from annotation.record.judgment import RatingPart

CORRECT_STEP, WRONG_STEP = "correct-step", "wrong-step"
STEP_SEPARATOR = "\n"
_TEXT_KINDS = {"prompt", "messages"}
_PAIR_SCORES = frozenset(
    f"{before}{between}{after}"
    for name in ("score", "rating", "avg_rating", "logprob", "logps", "reward")
    for side in ("chosen", "rejected")
    for before, between, after in ((name, "_", side), (side, "_", name), (side, "-", name), (name, "-", side))
) | {"margin", "scores"}


def preference(row: Row, prompt: list[dict[str, str]], chosen: str, rejected: str) -> ImportedItem:
    """Return a pair of which the first is better. row: under the roles of `columns`."""
    strength = fields.number(row.get("strength"))
    return ImportedItem(
        messages=prompt,
        **prompt_parts(row),
        completions=(
            ImportedCompletion(text=chosen, source=_source(row, "source_chosen")),
            ImportedCompletion(text=rejected, source=_source(row, "source_rejected")),
        ),
        judgments=(
            ImportedJudgment(
                verdict=Verdict.RANKED,
                ranks={"0": 1, "1": 2},
                strength=None if strength in (None, "") else fields.whole_number(strength, "strength"),
                **judgment_parts(row),
            ),
        ),
    )


def _source(row: Row, name: str) -> str:
    return fields.optional_text(row.get(name), name)


def _preference(row: Row) -> Iterator[ImportedItem]:
    chosen, rejected = (_chat_or_text(fields.required(row, name)) for name in ("chosen", "rejected"))
    if any(row.get(name) not in (None, "") for name in _TEXT_KINDS):
        prompt = fields.prompt_of(row)
        prompt, chosen, rejected = _parted(prompt, _after(prompt, chosen), _after(prompt, rejected))
    else:
        prompt, chosen, rejected = _implicit(chosen, rejected)
        prompt = fields.with_system(row.get("system"), prompt)
    yield preference(row, prompt, fields.answer(chosen, "chosen"), fields.answer(rejected, "rejected"))


def _chat_or_text(value: Any) -> Any:
    return fields.chat_in_text(value)


def _after(prompt: list[dict[str, str]], answer: Any) -> Any:
    """A conversation that repeats its prompt, as many sets on the hub do, without it."""
    if isinstance(answer, list) and len(answer) == len(prompt) + 1 and len(answer) > 1:
        beginning = fields.messages(answer[:-1], "chosen or rejected")
        if [m for m in beginning if m["role"] != "system"] == [m for m in prompt if m["role"] != "system"]:
            return answer[-1:]
    return answer


def _parted(
    prompt: list[dict[str, str]], chosen: Any, rejected: Any
) -> tuple[list[dict[str, str]], Any, Any]:
    """The earlier turns that both answers begin with belong to the prompt, which they may repeat."""
    if not isinstance(chosen, list) or not isinstance(rejected, list) or len(chosen) < 2:
        return prompt, chosen, rejected
    if chosen[:-1] != rejected[:-1]:
        raise FieldError(
            "questions_differ",
            _("All messages but the last must be the same as in chosen."),
            field="rejected",
        )
    shared = fields.messages(chosen[:-1], "chosen")
    system = [m for m in (*prompt, *shared) if m["role"] == "system"][:1]
    prompt_turns, shared = ([m for m in chat if m["role"] != "system"] for chat in (prompt, shared))
    # Sets on the hub name the first turn of a conversation as its prompt, or the last.
    if shared[:1] and shared[0]["role"] == "user":
        if not _contains(shared, prompt_turns):
            raise FieldError(
                "questions_differ",
                _(
                    "chosen and rejected begin a conversation in which the prompt is not. Leave the prompt's "
                    "column out, or write in them only what comes after the prompt."
                ),
                field="prompt",
            )
        turns = shared
    else:
        turns = [*prompt_turns, *shared]
    return fields.prompt([*system, *turns], "chosen"), chosen[-1:], rejected[-1:]


def _contains(chat: list[dict[str, str]], turns: list[dict[str, str]]) -> bool:
    return any(chat[start : start + len(turns)] == turns for start in range(len(chat)))


def _implicit(chosen: Any, rejected: Any) -> tuple[list[dict[str, str]], Any, Any]:
    if not isinstance(chosen, list) or not isinstance(rejected, list):
        raise FieldError(
            "field_missing",
            _(
                "The prompt is missing. In texts alone, nobody can tell where the question ends and the "
                "answer begins."
            ),
            field="prompt",
        )
    if len(chosen) < 2 or len(rejected) < 2 or chosen[:-1] != rejected[:-1]:
        raise FieldError(
            "questions_differ",
            _("All messages but the last must be the same as in chosen. Otherwise write a prompt."),
            field="rejected",
        )
    return fields.prompt(chosen[:-1], "chosen"), chosen[-1:], rejected[-1:]


def _answered(row: Row) -> tuple[list[dict[str, str]], str]:
    """The prompt of a row and the one answer to it: a completion, or the last message of its chat."""
    if row.get("completion") in (None, ""):
        chat = fields.chat_of(row)
        if chat[-1]["role"] != "assistant" or len(chat) < 2:
            raise missing_field("completion")
        return fields.prompt(chat[:-1], "messages"), chat[-1]["content"]
    value = _chat_or_text(row["completion"])
    if isinstance(value, list) and any(isinstance(text, str) for text in value):
        raise FieldError(
            "text_expected",
            _(
                "A text is expected, not a list (%(count)s). Write two texts as chosen and rejected, or each "
                "in a row of its own."
            ),
            field="completion",
            count=len(value),
        )
    prompt = fields.prompt_of(row)
    return prompt, fields.answer(_after(prompt, value), "completion")


def _unpaired(row: Row) -> Iterator[ImportedItem]:
    prompt, completion = _answered(row)
    ratings = tuple(ratings_of(row, RATING, 0))
    if not ratings and RATING not in row and (label := row.get("label")) is not None:
        ratings = (
            RatingPart(
                completion="0",
                criterion=DESIRABLE,
                scale=RatingScale.THUMBS,
                value=int(fields.truth(label, "label")),
            ),
        )
    if not ratings:
        raise FieldError(
            "field_missing",
            _("The label is missing. Rate the completion, or leave the row out."),
            field="label",
        )
    yield ImportedItem(
        messages=prompt,
        **prompt_parts(row),
        completions=(ImportedCompletion(text=completion, source=_source(row, "source_1")),),
        judgments=(ImportedJudgment(verdict=Verdict.NOT_ASKED, ratings=ratings, **judgment_parts(row)),),
    )


def _prompt_only(row: Row) -> Iterator[ImportedItem]:
    yield ImportedItem(messages=fields.prompt_of(row), **prompt_parts(row))


def _prompt_completion(row: Row) -> Iterator[ImportedItem]:
    """A demonstration is the prompt's reference answer: nobody compared it with another."""
    prompt, answer = _answered(row)
    parts = prompt_parts(row)
    yield ImportedItem(messages=prompt, **{**parts, "references": [answer, *parts["references"]]})


def _stepwise(row: Row) -> Iterator[ImportedItem]:
    steps = _listed(row, "completions")
    labels = _listed(row, "labels")
    if not steps or len(steps) != len(labels):
        raise FieldError(
            "labels_differ",
            _(
                "The number of labels, %(labels)s, differs from the number of steps, %(steps)s. Write one "
                "label for each step."
            ),
            field="labels",
            labels=len(labels),
            steps=len(steps),
        )
    texts = [fields.text(step, f"completions[{number}]") for number, step in enumerate(steps)]
    text = STEP_SEPARATOR.join(texts)
    spans, start = [], 0
    for number, (step, label) in enumerate(zip(texts, labels, strict=True)):
        category = CORRECT_STEP if fields.truth(label, f"labels[{number}]") else WRONG_STEP
        spans.append(span_at(0, text, category, start, start + len(step)))
        start += len(step) + len(STEP_SEPARATOR)
    yield ImportedItem(
        messages=fields.prompt_of(row),
        **prompt_parts(row),
        completions=(ImportedCompletion(text=text),),
        judgments=(ImportedJudgment(verdict=Verdict.NOT_ASKED, spans=tuple(spans), **judgment_parts(row)),),
    )


def _listed(row: Row, name: str) -> list[Any]:
    return fields.items_of(fields.listed_in_text(fields.required(row, name)), name)


def preference_rows(record: Record, scene: Scene) -> Written:
    for pair in pairs(record):
        if isinstance(pair, Dropped):
            yield pair
        else:
            chosen, rejected = pair
            yield {
                "prompt": record["messages"],
                "chosen": answer_messages(chosen["text"]),
                "rejected": answer_messages(rejected["text"]),
            }


def _trl_unpaired(record: Record, scene: Scene) -> Written:
    for completion, label in _labels(record):
        if isinstance(label, str):
            yield Dropped(label, completion["id"])
        else:
            yield {
                "prompt": record["messages"],
                "completion": answer_messages(completion["text"]),
                "label": label,
            }


def _labels(record: Record) -> Iterator[tuple[Mapping[str, Any], bool | str]]:
    """Each completion with whether it is desirable, or why nobody can tell."""
    thumbs = {r["completion"]: bool(r["value"]) for r in record["ratings"] if r["criterion"] == DESIRABLE}
    verdict, ranks = Verdict(record["verdict"]), record["ranks"]
    is_partial = len(ranks) < len(record["completions"])
    worst = max(ranks.values(), default=1) + is_partial
    for completion in record["completions"]:
        pk = completion["id"]
        if pk in thumbs:
            yield completion, thumbs[pk]
        elif verdict in (Verdict.BOTH_GOOD, Verdict.BOTH_BAD):
            yield completion, verdict == Verdict.BOTH_GOOD
        elif verdict == Verdict.RANKED and pk not in ranks:
            yield completion, UNORDERED
        elif verdict == Verdict.RANKED and worst > 1 and ranks[pk] in (1, worst):
            yield completion, ranks[pk] == 1
        elif verdict == Verdict.RANKED and worst > 1:
            yield completion, "neither the best nor the worst of the ranking"
        else:
            yield completion, NO_ORDER.get(verdict, "nothing to compare it with")


def sft_rows(record: Record, scene: Scene) -> Written:
    has_rows = False
    for text in _worth_imitating(record):
        has_rows = True
        yield {"prompt": record["messages"], "completion": answer_messages(text)}
    if not has_rows:
        yield Dropped(NO_ORDER.get(Verdict(record["verdict"]), "no answer to imitate"))


def _worth_imitating(record: Record) -> Iterator[str]:
    """Return the text that a person wrote, else the one that they preferred or called good."""
    written_texts = [
        text for text in (record["demonstration"], *(c["text"] for c in record["corrections"])) if text
    ]
    yield from written_texts
    if written_texts:
        return
    ranks = record["ranks"]
    is_partial = 0 < len(ranks) < len(record["completions"])
    preferred = record["verdict"] == Verdict.RANKED and (is_partial or len(set(ranks.values())) > 1)
    if preferred or record["verdict"] == Verdict.BOTH_GOOD:
        yield from (c["text"] for c in record["completions"] if ranks.get(c["id"]) == 1)


def _trl_prm(record: Record, scene: Scene) -> Written:
    """The steps that are marked; else segments, wrong where a mark of an error touches one."""
    for completion in record["completions"]:
        marks = [span for span in record["spans"] if span["completion"] == completion["id"]]
        steps = [mark for mark in marks if mark["category"] in (CORRECT_STEP, WRONG_STEP)]
        if steps:
            steps.sort(key=lambda mark: (mark["start"], mark["end"]))
            labelled_steps = [(mark["quote"], mark["category"] == CORRECT_STEP) for mark in steps]
        elif marks:
            wrong = [
                m for m in marks if scene.polarities.get(m["category"], Polarity.ERROR) == Polarity.ERROR
            ]
            labelled_steps = [
                (completion["text"][start:end], not any(m["start"] < end and start < m["end"] for m in wrong))
                for start, end in segments(completion["text"], scene.step_granularity)
            ]
        else:
            yield Dropped("nothing is marked, so no step is known to be right or wrong", completion["id"])
            continue
        yield {
            "prompt": "\n\n".join(message["content"] for message in record["messages"]),
            "completions": [step for step, _ in labelled_steps],
            "labels": [right for _, right in labelled_steps],
        }


def _has_prompt(row: Row) -> bool:
    return any(name in row for name in ("prompt", "messages"))


_NO_ANSWERS = {"answer_1", "answer_2"}
# OpenAI's rows for fine-tuning: in and out.
#
# From https://platform.openai.com/docs/guides/supervised-fine-tuning and …/direct-preference-optimization:
#
# - `openai-messages`, `{"messages": […]}` that end with the assistant's answer to imitate. Out, earlier
# answers have `weight` 0: each of them has a row of its own, so the last turn alone is trained on. In, the
# last answer is the reference of the prompt before it, because nobody compared it with another. A row that
# ends with the user's message is a prompt alone.
# - `openai-preference`: `input.messages` with `preferred_output` and `non_preferred_output`, one assistant
# message each.
#
# `developer`, the newer name of the system message, is read as `system`. A row with tool calls is refused:
# `traces` reads those.

_BESIDE_MESSAGES = {"messages", "tools", "functions", "parallel_tool_calls", "metadata"}
_PAIR = ("preferred_output", "non_preferred_output")


def _messages(row: Row) -> Iterator[ImportedItem]:
    chat = _chat(fields.required(row, "messages"), "messages")
    if chat[-1]["role"] != "assistant":
        yield ImportedItem(messages=fields.prompt(chat, "messages"))
    elif len(chat) == 1:
        raise FieldError(
            "prompt_missing",
            _("There is only an answer. Write the message that it answers before it."),
            field="messages",
        )
    elif _is_not_to_learn(row):
        yield ImportedItem(messages=fields.prompt(chat[:-1], "messages"))
    else:
        yield ImportedItem(messages=fields.prompt(chat[:-1], "messages"), references=[chat[-1]["content"]])


def _is_not_to_learn(row: Row) -> bool:
    """True where the last answer has the weight 0: it is not to be imitated."""
    listed = row.get("messages")
    last = listed[-1] if isinstance(listed, list) and listed else None
    return isinstance(last, Mapping) and last.get("weight") in (0, "0")


def _survey(row: Row) -> Iterator[RowPart]:
    if _is_not_to_learn(row):
        yield RowPart("messages[].weight", 0, "not_read", "an answer with the weight 0 is no reference")


def _openai_preference(row: Row) -> Iterator[ImportedItem]:
    request = fields.object_of(fields.required(row, "input"), "input")
    messages = fields.prompt(_chat(request.get("messages"), "input.messages"), "input.messages")
    chosen, rejected = (fields.answer(_chat(fields.required(row, name), name), name) for name in _PAIR)
    item = preference(
        {"annotator": row.get("annotator"), "created_at": row.get("created_at")}, messages, chosen, rejected
    )
    yield replace(item, metadata={name: value for name, value in request.items() if name != "messages"})


def _chat(value: Any, where: str) -> list[dict[str, str]]:
    listed = fields.items_of(value, where)
    for number, message in enumerate(listed):
        if isinstance(message, Mapping) and (
            message.get("tool_calls") or message.get("role") in ("tool", "function")
        ):
            raise FieldError(
                "tool_called",
                _("The message calls a tool. Choose the format openai_traces."),
                field=f"{where}[{number}]",
            )
    renamed = [
        {**turn, "role": "system"} if isinstance(turn, dict) and turn.get("role") == "developer" else turn
        for turn in listed
    ]
    return fields.messages(renamed, where)


def _message_rows(record: Record, scene: Scene) -> Written:
    for row in sft_rows(record, scene):
        if isinstance(row, Dropped):
            yield row
        else:
            yield {"messages": [*(_unweighted(message) for message in row["prompt"]), *row["completion"]]}


def _unweighted(message: Mapping[str, str]) -> dict[str, Any]:
    return {**message, "weight": 0} if message["role"] == "assistant" else dict(message)


def _preference_rows(record: Record, scene: Scene) -> Written:
    for row in preference_rows(record, scene):
        if isinstance(row, Dropped):
            yield row
        else:
            yield {
                "input": {"messages": row["prompt"]},
                "preferred_output": row["chosen"],
                "non_preferred_output": row["rejected"],
            }


# LLaMA-Factory's preference files in the form of ShareGPT, which axolotl reads too: out.
#
# From `data/dpo_en_demo.json` of https://github.com/hiyouga/LLaMA-Factory: `conversations` of `from`
# (`human`, `gpt`) and `value`, `chosen` and `rejected` as one message of `gpt` each, and `system`.
# `trl-preference` reads them.

_FROM = {"user": "human", "assistant": "gpt"}


def _llama_factory_rows(record: Record, scene: Scene) -> Written:
    system = next((m["content"] for m in record["messages"] if m["role"] == "system"), "")
    conversations = [
        {"from": _FROM[message["role"]], "value": message["content"]}
        for message in record["messages"]
        if message["role"] != "system"
    ]
    for pair in pairs(record):
        if isinstance(pair, Dropped):
            yield pair
        else:
            chosen, rejected = ({"from": "gpt", "value": completion["text"]} for completion in pair)
            yield {
                "conversations": conversations,
                "chosen": chosen,
                "rejected": rejected,
                **({"system": system} if system else {}),
            }


# OpenRLHF's preference pairs in Parquet: out.
#
# `openrlhf/datasets/reward_dataset.py` of https://github.com/OpenRLHF/OpenRLHF (messages, with
# `--apply_chat_template --prompt_key prompt`).


def _openrlhf_rows(record: Record, scene: Scene) -> Written:
    for row in preference_rows(record, scene):
        yield row if isinstance(row, Dropped) else {**row, "margin": record["strength"] or 0}


# Prompts in Parquet for verl: out. `docs/preparation/prepare_data.rst` of https://github.com/volcengine/verl.


def _verl_rows(record: Record, scene: Scene) -> Written:
    references = record["references"]
    yield {
        "data_source": f"rondo/{scene.slug}",
        "prompt": record["messages"],
        "ability": (record["tags"] or ["chat"])[0],
        "reward_model": {"style": "rule" if references else "model", "ground_truth": (references or [""])[0]},
        "extra_info": {"split": record["split"], "index": record["prompt"]},
    }


READERS = (
    Reader(
        name="trl-preference",
        sentence="Pairs: prompt, chosen, rejected, as texts or messages (TRL, LLaMA-Factory, axolotl).",
        read=_preference,
        matches=lambda row: "chosen" in row and "rejected" in row,
        is_tabular=True,
        reads={
            **PROMPT_READS,
            **JUDGMENT_READS,
            "chosen": "the better response",
            "rejected": "the other response",
            "source_chosen": "the source of the better response",
            "source_rejected": "the source of the other response",
        },
        # Scores of reward models and of the programs that chose: the pair is the verdict.
        keeps=_PAIR_SCORES,
        ignores={"messages": "it repeats the prompt and the better response"},
    ),
    Reader(
        name="trl-stepwise",
        sentence="TRL's stepwise supervision: prompt, completions (steps), labels.",
        read=_stepwise,
        matches=lambda row: _has_prompt(row) and {"completions", "labels"} <= row.keys(),
        is_tabular=True,
        reads={
            **PROMPT_READS,
            **JUDGMENT_READS,
            "completions": "the steps of the response",
            "labels": "whether each step is correct",
        },
    ),
    Reader(
        name="trl-unpaired",
        sentence="Single responses with a label or ratings (TRL's unpaired preferences, KTO, ratings).",
        read=_unpaired,
        matches=lambda row: (
            RATING in row
            and not _NO_ANSWERS & row.keys()
            and ("completion" in row or ("prompt" not in row and fields.is_answered(row.get("messages"))))
        ),
        is_tabular=True,
        reads={
            **PROMPT_READS,
            **JUDGMENT_READS,
            "completion": "the response",
            "source_1": "the source of the response",
            RATING: "a rating of the response",
        },
    ),
    Reader(
        name="trl-prompt-completion",
        sentence="Prompt and completion (TRL, Alpaca): each completion becomes the prompt's reference.",
        read=_prompt_completion,
        matches=lambda row: _has_prompt(row) and "completion" in row and not _NO_ANSWERS & row.keys(),
        is_tabular=True,
        reads={**PROMPT_READS, "completion": "a reference answer of the prompt"},
    ),
    Reader(
        name="trl-prompt",
        sentence="Prompts alone, TRL's prompt-only type.",
        read=_prompt_only,
        matches=lambda row: set(row) == {"prompt"},
        is_tabular=True,
        reads=PROMPT_READS,
    ),
    Reader(
        name="openai-preference",
        sentence="OpenAI's preference fine-tuning: input, preferred_output, non_preferred_output.",
        read=_openai_preference,
        matches=lambda row: {"input", *_PAIR} <= row.keys(),
        reads={
            "input": "the prompt",
            "preferred_output": "the better response",
            "non_preferred_output": "the other response",
            "annotator": "the annotator",
            "created_at": "the time of the annotation",
        },
        completion_fields=_PAIR,
    ),
    Reader(
        name="openai-messages",
        sentence="OpenAI's chats: messages whose last answer becomes the prompt's reference.",
        read=_messages,
        matches=lambda row: row.keys() <= _BESIDE_MESSAGES and fields.is_plain(row.get("messages")),
        reads={"messages": "the prompt, and its last answer as a reference"},
        survey=_survey,
    ),
)
WRITERS = (
    Writer(
        name="trl-preference",
        sentence="TRL preference pairs (conversational), for reward models, DPO and their kin.",
        container="jsonl",
        rows=preference_rows,
        carries="decided pairs",
        loses="ties, preferences without a winner, strength",
    ),
    Writer(
        name="trl-unpaired",
        sentence="TRL unpaired preferences (conversational), for KTO: of TRL's, it alone carries both bad.",
        container="jsonl",
        rows=_trl_unpaired,
        carries="best and worst, both good, both bad, thumbs",
        loses="equal, the middle of a ranking, what a partial ranking does not order",
    ),
    Writer(
        name="trl-sft",
        sentence="TRL prompt and completion: demonstrations and corrections, else the preferred answers.",
        container="jsonl",
        rows=sft_rows,
        carries="demonstrations, corrections, preferred responses",
        loses="everything else; it goes out alone",
    ),
    Writer(
        name="trl-prm",
        sentence="TRL stepwise supervision, for process reward models: steps and whether each is right.",
        container="jsonl",
        rows=_trl_prm,
        has_steps=True,
        carries="steps: those that are labelled, else the segments by which spans are rewarded",
        loses="annotations without spans",
    ),
    Writer(
        name="openai-messages",
        sentence="OpenAI's chats: demonstrations and corrections, else the preferred answers.",
        container="jsonl",
        rows=_message_rows,
        carries="demonstrations, corrections, preferred responses; read back, a response is a reference",
        loses="everything else",
    ),
    Writer(
        name="openai-preference",
        sentence="OpenAI's preference fine-tuning: input, preferred_output, non_preferred_output.",
        container="jsonl",
        rows=_preference_rows,
        carries="decided pairs",
        loses="ties, preferences without a winner, strength",
    ),
    Writer(
        name="openrlhf",
        sentence="Preference pairs in Parquet for OpenRLHF, the strength as margin.",
        container="parquet",
        rows=_openrlhf_rows,
        columns={
            "prompt": "messages",
            "chosen": "messages",
            "rejected": "messages",
            "margin": "whole number",
        },
        carries="decided pairs, the strength as a margin",
        loses="ties, preferences without a winner",
    ),
    Writer(
        name="llama-factory",
        sentence="LLaMA-Factory's preference pairs (ShareGPT): conversations, chosen, rejected.",
        container="json",
        rows=_llama_factory_rows,
        carries="decided pairs",
        loses="ties, preferences without a winner, strength",
    ),
    Writer(
        name="verl",
        sentence="Prompts in Parquet for verl's policy optimisation, with the reference as ground truth.",
        container="parquet",
        rows=_verl_rows,
        columns={
            "data_source": "text",
            "prompt": "messages",
            "ability": "text",
            "reward_model": "struct:style,ground_truth",
            "extra_info": "struct:split,index",
        },
        once_per_prompt=True,
        carries="prompts with references",
        loses="judgments; it goes out alone",
    ),
)
