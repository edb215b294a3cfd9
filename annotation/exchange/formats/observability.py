"""Exports of tools that record and evaluate what programs ask models: Langfuse, LangSmith, Phoenix. In.

- `langfuse`: items of a data set (`input`, `expectedOutput`, JSON also in CSV cells) are prompts with a
  reference; traces with `scores` are single responses, with a judgment for each person or program.
- `langsmith`: rows of a data set (`inputs`, `outputs`) are prompts with a reference; runs with `feedback` or
  `feedback_stats` single responses; two `runs` with `feedback` on a key are a pair of an annotation queue.
- `phoenix`: spans with `attributes.input.value`, `attributes.output.value` or `attributes.llm.…_messages`,
  and `annotations` (`name`, `annotator_kind`, `result` with `label`, `score`, `explanation`).

A score becomes a rating where the scores of its name are on a scale of Rondo: the values of the whole file
decide. Any other score must be left out by name; it stays with the annotation.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django.utils.translation import gettext as _

from annotation.choices import Verdict
from annotation.exchange.formats import fields
from annotation.exchange.formats.columns import by_name
from annotation.exchange.formats.fields import FieldError, excerpt
from annotation.exchange.formats.items import (
    ImportedCompletion,
    ImportedItem,
    ImportedJudgment,
    Reader,
    Row,
    RowPart,
    key_of,
    ranks_by_place,
)
from annotation.exchange.formats.tables import prompt_parts
from annotation.exchange.formats.verdicts import VerdictRanks, rating_of
from annotation.record.judgment import RatingPart

# What programs sent to models and received, as tools for tracing and evaluation store it: any JSON.
#
# An input is a text, a chat (of OpenAI, LangChain or Open WebUI), or an object with one of them under a name
# that says so; an output likewise. What else an object holds is kept as metadata.

_CHATS = ("messages", "chat_history", "conversation")
_OUTPUTS = (
    *("answer", "output", "response", "completion", "result", "generation", "reply", "prediction"),
    *("text", "content", "expected_output", "reference", "ground_truth", "expected", "label", "message"),
)
_LANGCHAIN = {"human": "user", "ai": "assistant", "system": "system", "HumanMessage": "user"}
_LANGCHAIN |= {"AIMessage": "assistant", "SystemMessage": "system"}


def prompt_in(value: Any, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return an input as fields of an item that belong to its prompt, and what else it holds."""
    value = fields.listed_in_text(value)
    if isinstance(value, list):
        return {"messages": fields.prompt(chat_in(value, where), where)}, {}
    if not isinstance(value, dict):
        return {"messages": fields.prompt(value, where)}, {}
    if "role" in value and "content" in value:
        return {"messages": fields.prompt([value], where)}, {}
    rest = dict(value)
    for name in _CHATS:
        if isinstance(value.get(name), list) and value[name]:
            chat = chat_in(rest.pop(name), f"{where}.{name}")
            return {"messages": fields.prompt(chat, f"{where}.{name}")}, rest
    shown, roles = by_name(value)
    if not any(name in shown for name in ("prompt", "messages")):
        texts = [name for name, text in value.items() if isinstance(text, str) and text.strip()]
        if len(texts) != 1:
            raise FieldError(
                "prompt_unclear",
                _("None of these fields alone can be the prompt: %(names)s. Keep one text."),
                field=where,
                names=excerpt(list(value)),
            )
        shown, roles = by_name({"prompt": rest.pop(texts[0])})
    known = ("prompt", "messages", "system", "history", "input", "context", "reference", "tag")
    rest = {name: each for name, each in rest.items() if roles.columns.get(name) not in known}
    return {"messages": fields.prompt_of(shown), **prompt_parts(shown)}, rest


def chat_in(value: list[Any], where: str) -> list[dict[str, str]]:
    """Return a chat whose messages may be those of LangChain, also inside a list of batches."""
    if len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    return fields.messages([_message(message) for message in value], where)


def _message(message: Any) -> Any:
    if not isinstance(message, Mapping) or ("role" in message and "content" in message):
        return message
    data = message.get("data", message.get("kwargs", message))
    kind = message.get("type")
    if isinstance(message.get("id"), list) and message["id"]:
        kind = message["id"][-1]
    if kind in _LANGCHAIN and isinstance(data, Mapping):
        return {"role": _LANGCHAIN[str(kind)], "content": data.get("content")}
    return message


def text_in(value: Any, where: str) -> tuple[str, dict[str, Any]]:
    """Return an output as a text, and what else it holds. An output without a text is refused."""
    value = fields.listed_in_text(value)
    if isinstance(value, list) and len(value) == 1:
        return text_in(value[0], f"{where}[0]")
    if not isinstance(value, dict):
        return fields.answer(value, where), {}
    message = _message(value)
    if isinstance(message, dict) and "role" in message and "content" in message:
        return fields.answer(message, where), {}
    for name in ("generations", "choices", "messages"):
        listed = value.get(name)
        if isinstance(listed, list) and listed:
            rest = {key: each for key, each in value.items() if key != name}
            last = listed[-1] if name == "messages" else listed[0]
            return text_in(last, f"{where}.{name}")[0], rest
    name = next((each for each in _OUTPUTS if value.get(each) not in (None, "", {}, [])), "")
    if not name:
        texts = [key for key, each in value.items() if isinstance(each, str) and each.strip()]
        if len(texts) != 1:
            raise FieldError(
                "answer_unclear",
                _("None of these fields alone can be the response: %(names)s. Keep one text."),
                field=where,
                names=excerpt(list(value)),
            )
        name = texts[0]
    rest = {key: each for key, each in value.items() if key != name}
    return text_in(value[name], f"{where}.{name}")[0], rest


def flat(value: Any, name: str) -> dict[str, Any]:
    """Return an object of metadata with its own names; anything else under a name."""
    value = fields.listed_in_text(value)
    if isinstance(value, dict):
        return {str(key): each for key, each in value.items() if each not in (None, "", {}, [])}
    return {} if value in (None, "", []) else {name: value}


_PEOPLE = {"ANNOTATION", "HUMAN", "APP", "API", "USER"}
"""Sources of scores that may be people: a program that scores calls itself EVAL, LLM, CODE or MODEL."""


@dataclass(frozen=True, slots=True)
class _Score:
    """One score of one response by one person or program."""

    name: str
    value: Any
    comment: str = ""
    person: str = ""
    is_machine: bool = False
    time: Any = None
    label: Any = None
    """The words beside a number."""


@dataclass(slots=True)
class _Scores:
    """The scores of one response, by the people that gave them."""

    row: Row
    parts: list[RowPart] = field(default_factory=list)

    def judgments(self, scores: Iterable[_Score]) -> Iterator[ImportedJudgment]:
        """Yield a judgment for each person or program."""
        by_person: dict[tuple[str, bool], list[_Score]] = {}
        for score in scores:
            by_person.setdefault((score.person, score.is_machine), []).append(score)
        for (person, is_machine), of_person in by_person.items():
            yield self._judgment(person, is_machine, of_person)

    def _judgment(self, person: str, is_machine: bool, scores: Sequence[_Score]) -> ImportedJudgment:
        ratings: dict[str, RatingPart] = {}
        unread = []
        for score in scores:
            rating = self._rating(score)
            if rating is None or rating.criterion in ratings:
                unread.append({"name": score.name, "value": score.value})
            else:
                ratings[rating.criterion] = rating
                if score.label not in (None, ""):
                    unread.append({"name": score.name, "label": score.label})
        times = [score.time for score in scores if score.time not in (None, "")]
        comments = [score.comment for score in scores if score.comment]
        return ImportedJudgment(
            verdict=Verdict.NOT_ASKED,
            annotator=person,
            is_machine=is_machine,
            ratings=tuple(ratings.values()),
            comment="\n\n".join(dict.fromkeys(comments)),
            created_at=fields.moment(times[0], "scores") if times else "",
            more={"scores": unread} if unread else {},
        )

    def _rating(self, score: _Score) -> RatingPart | None:
        part = f"scores.{score.name}"
        if score.value in (None, "", [], {}):
            return None
        if isinstance(score.value, (list, dict)):
            self.parts.append(
                RowPart(part, score.value, "question", "it is no single score, but a mean or a list")
            )
            return None
        self.parts.append(RowPart(part, score.value, "read", "a rating of the response", is_rating=True))
        return rating_of(self.row, part, score.value, 0, key_of(score.name))


def _response(
    row: Row, given: Any, said: Any, scores: Sequence[_Score], *, names: tuple[str, str], source: Any = None
) -> ImportedItem:
    """One response with its scores; without any, work that waits."""
    prompt, rest = prompt_in(given, names[0])
    text, more = text_in(said, names[1])
    return ImportedItem(
        **prompt,
        completions=(ImportedCompletion(text=text, source=fields.optional_text(source, "model")),),
        judgments=tuple(_Scores(row).judgments(scores)),
        metadata=_kept({**rest, **more}),
    )


def _reference(given: Any, expected: Any, *, names: tuple[str, str]) -> ImportedItem:
    """A prompt with the reference that a data set has for it."""
    prompt, rest = prompt_in(given, names[0])
    references = list(prompt.get("references", ()))
    more: dict[str, Any] = {}
    if fields.listed_in_text(expected) not in (None, "", {}, []):
        text, more = text_in(expected, names[1])
        references.insert(0, text)
    return ImportedItem(**{**prompt, "references": references}, metadata=_kept({**rest, **more}))


def _kept(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, "", [], {})}


def _survey(read: Any) -> Any:
    """A survey that accounts for every score of a row, by a format's own reading of them."""

    def survey(row: Row) -> Iterator[RowPart]:
        scores = _Scores(row)
        try:
            list(scores.judgments(read(row)))
        except FieldError:
            # Its reading raises the same error, which then names the row.
            return
        yield from scores.parts

    return survey


def _objects(value: Any, where: str) -> list[Mapping[str, Any]]:
    listed = fields.items_of(fields.listed_in_text(value) or None, where)
    return [fields.object_of(each, f"{where}[{number}]") for number, each in enumerate(listed)]


def _langfuse(row: Row) -> Iterator[ImportedItem]:
    trace = row.get("trace")
    values = {**row, **trace} if isinstance(trace, dict) else row
    expected = values.get("expectedOutput", values.get("expected_output"))
    if "output" in values:
        scores = list(_langfuse_scores(row))
        item = _response(
            row,
            values.get("input"),
            values.get("output"),
            scores,
            names=("input", "output"),
            source=values.get("model") or values.get("providedModelName"),
        )
    else:
        item = _reference(values.get("input"), expected, names=("input", "expectedOutput"))
    yield _with(item, flat(values.get("metadata"), "metadata"))


def _with(item: ImportedItem, metadata: Mapping[str, Any]) -> ImportedItem:
    return replace(item, metadata={**metadata, **item.metadata}) if metadata else item


def _langfuse_scores(row: Row) -> Iterator[_Score]:
    trace = row.get("trace")
    values = {**row, **trace} if isinstance(trace, dict) else row
    listed = fields.listed_in_text(values.get("scores"))
    if isinstance(listed, dict):
        # The tables of the pages: name → the values of that name.
        for name, several in listed.items():
            for value in several if isinstance(several, list) else [several]:
                yield _Score(str(name), value)
        return
    for entry in _objects(listed, "scores"):
        kind, value = entry.get("dataType", entry.get("data_type")), entry.get("value")
        said = entry.get("stringValue", entry.get("string_value"))
        if kind == "BOOLEAN":
            value = value in (1, 1.0, True, "1", "True", "true")
        elif kind == "CATEGORICAL" or value is None:
            value = said
        source = str(entry.get("source") or "")
        yield _Score(
            name=fields.text(entry.get("name"), "scores.name"),
            value=value,
            comment=fields.optional_text(entry.get("comment"), "scores.comment"),
            person=fields.person(entry.get("authorUserId", entry.get("author_user_id")), "scores"),
            is_machine=source == "EVAL",
            time=entry.get("timestamp") or entry.get("createdAt") or entry.get("created_at"),
        )


def _langsmith(row: Row) -> Iterator[ImportedItem]:
    runs = row.get("runs")
    if isinstance(runs, list):
        yield _pair(row, runs)
        return
    given, said = row.get("inputs"), row.get("outputs")
    if "feedback" in row or "feedback_stats" in row or row.get("run_type"):
        item = _response(row, given, said, list(_langsmith_scores(row)), names=("inputs", "outputs"))
        expected = fields.listed_in_text(row.get("reference_outputs"))
        if expected not in (None, "", {}, []):
            reference, _rest = text_in(expected, "reference_outputs")
            item = replace(item, references=[*item.references, reference])
    else:
        expected = said if "outputs" in row else row.get("reference_outputs")
        item = _reference(given, expected, names=("inputs", "outputs"))
    yield _with(item, flat(row.get("metadata"), "metadata"))


def _langsmith_scores(row: Row) -> Iterator[_Score]:
    stats = fields.listed_in_text(row.get("feedback_stats"))
    if isinstance(stats, dict) and not row.get("feedback"):
        for name, each in stats.items():
            if isinstance(each, dict):
                # One score alone is itself; a mean of several is nobody's.
                single = each.get("n") in (1, None)
                yield _Score(str(name), each.get("avg") if single else {"mean": each.get("avg")})
        return
    for entry in _objects(row.get("feedback"), "feedback"):
        value = entry.get("score") if entry.get("score") is not None else entry.get("value")
        source = entry.get("feedback_source") or {}
        kind = str(source.get("type") if isinstance(source, dict) else source).lower()
        user = source.get("user_id") if isinstance(source, dict) else None
        yield _Score(
            name=fields.text(entry.get("key"), "feedback.key"),
            value=value,
            comment=fields.optional_text(entry.get("comment"), "feedback.comment"),
            person=fields.person(user or entry.get("user_id"), "feedback"),
            is_machine=kind in ("model", "auto_eval", "evaluator"),
            time=entry.get("created_at"),
        )


def _pair(row: Row, runs: list[Any]) -> ImportedItem:
    """Runs of one input that were compared: by each person's feedback, the run with the higher score is best.

    Feedback stands beside the runs, with the score of each run by its id, or in each run under one key.
    """
    listed = [fields.object_of(run, f"runs[{number}]") for number, run in enumerate(runs)]
    given = row.get("inputs") if row.get("inputs") is not None else listed[0].get("inputs")
    prompt, rest = prompt_in(given, "inputs")
    return ImportedItem(
        **prompt,
        completions=tuple(
            ImportedCompletion(
                text=text_in(run.get("outputs"), f"runs[{number}].outputs")[0],
                source=fields.optional_text(run.get("name") or run.get("session_name"), "runs.name"),
            )
            for number, run in enumerate(listed)
        ),
        judgments=tuple(_comparisons(row, listed)),
        metadata=_kept(rest),
    )


def _comparisons(row: Row, runs: Sequence[Mapping[str, Any]]) -> Iterator[ImportedJudgment]:
    scores: dict[tuple[str, str], dict[int, float]] = {}
    entries: dict[str, list[Mapping[str, Any]]] = {}
    ids = [str(run.get("id")) for run in runs]
    for entry in _objects(row.get("feedback"), "feedback"):
        of_runs = fields.listed_in_text(entry.get("scores"))
        if not isinstance(of_runs, dict):
            raise FieldError(
                "field_missing",
                _("The scores are missing. Write the score of each run by its id."),
                field="feedback.scores",
            )
        whose = _whose(entry, entries)
        scores[whose] = {ids.index(run): _number(score) for run, score in of_runs.items() if run in ids}
    for place, run in enumerate(runs):
        for entry in _objects(run.get("feedback"), f"runs[{place}].feedback"):
            scores.setdefault(_whose(entry, entries), {})[place] = _number(entry.get("score"))
    decisions: dict[str, VerdictRanks] = {}
    for (person, key), by_run in scores.items():
        if len(by_run) != len(runs):
            raise FieldError(
                "scores_incomplete",
                _("The feedback %(key)s does not score every run (%(count)s)."),
                field="feedback",
                key=excerpt(key),
                count=len(runs),
            )
        order = sorted(set(by_run.values()), reverse=True)
        decision = decisions.setdefault(person, VerdictRanks(len(runs)))
        decision.rank(tuple(order.index(by_run[place]) + 1 for place in range(len(runs))), f"feedback {key}")
    for person, decision in decisions.items():
        comments = [fields.optional_text(each.get("comment"), "feedback.comment") for each in entries[person]]
        times = [fields.moment(each.get("created_at"), "feedback.created_at") for each in entries[person]]
        yield ImportedJudgment(
            verdict=decision.verdict,
            ranks=ranks_by_place(decision.ranks),
            annotator=person,
            comment="\n\n".join(dict.fromkeys(filter(None, comments))),
            created_at=next(filter(None, times), ""),
        )


def _whose(entry: Mapping[str, Any], entries: dict[str, list[Mapping[str, Any]]]) -> tuple[str, str]:
    source = entry.get("feedback_source")
    user = source.get("user_id") if isinstance(source, dict) else None
    person = fields.person(user or entry.get("user_id"), "feedback.user_id")
    entries.setdefault(person, []).append(entry)
    return person, fields.optional_text(entry.get("key"), "feedback.key")


def _number(score: Any) -> float:
    number = fields.number(score)
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise FieldError(
            "number_expected",
            _("A number is expected, not %(value)s."),
            field="feedback.score",
            value=excerpt(score),
        )
    return float(number)


_MESSAGES = ("attributes.llm.input_messages", "attributes.input.value")
_REPLIES = ("attributes.llm.output_messages", "attributes.output.value")


def _phoenix(row: Row) -> Iterator[ImportedItem]:
    flattened = dict(_attributes(row))
    given = next((name for name in _MESSAGES if flattened.get(name) not in (None, "", [])), _MESSAGES[1])
    said = next((name for name in _REPLIES if flattened.get(name) not in (None, "", [])), _REPLIES[1])
    yield _response(
        row,
        _openinference(flattened.get(given)),
        _openinference(flattened.get(said)),
        list(_phoenix_scores(row)),
        names=(given, said),
        source=flattened.get("attributes.llm.model_name"),
    )


def _attributes(row: Row) -> Iterator[tuple[str, Any]]:
    """The attributes of a span, whether they are columns or one object."""
    nested = fields.listed_in_text(row.get("attributes"))
    waiting = [("attributes", nested)] if isinstance(nested, dict) else []
    while waiting:
        path, value = waiting.pop()
        yield path, value
        if isinstance(value, dict):
            waiting += [(f"{path}.{name}", each) for name, each in value.items()]
    yield from ((name, value) for name, value in row.items() if name.startswith("attributes."))


def _openinference(value: Any) -> Any:
    """Messages as OpenInference writes them: `message.role`, `message.content`."""
    value = fields.listed_in_text(value)
    if not isinstance(value, list):
        return value
    messages = []
    for entry in value:
        inner = entry.get("message", entry) if isinstance(entry, dict) else entry
        if isinstance(inner, dict) and "message.role" in inner:
            inner = {"role": inner["message.role"], "content": inner.get("message.content")}
        messages.append(inner)
    return messages


def _phoenix_scores(row: Row) -> Iterator[_Score]:
    listed = fields.listed_in_text(row.get("annotations"))
    if isinstance(listed, dict):
        listed = [{"name": name, "result": each} for name, each in listed.items()]
    for entry in _objects(listed, "annotations"):
        inner = entry.get("result")
        result = inner if isinstance(inner, dict) else entry
        label, score = result.get("label"), result.get("score")
        kind = str(entry.get("annotator_kind") or "HUMAN").upper()
        yield _Score(
            name=fields.text(entry.get("name") or entry.get("annotation_name"), "annotations.name"),
            value=score if score is not None else label,
            label=label if score is not None else None,
            comment=fields.optional_text(result.get("explanation"), "annotations.explanation"),
            person=fields.person(entry.get("user_id") or entry.get("identifier") or None, "annotations"),
            is_machine=kind not in _PEOPLE,
            time=entry.get("updated_at") or entry.get("created_at"),
        )


def _is_langfuse(row: Row) -> bool:
    trace = row.get("trace")
    values = trace if isinstance(trace, dict) else row
    is_item = "input" in row and ("expectedOutput" in row or "sourceTraceId" in row)
    is_trace = {"input", "output"} <= values.keys() and "prompt" not in row
    return is_item or (is_trace and any(name in values for name in _OF_TRACES))


def _is_langsmith(row: Row) -> bool:
    if isinstance(row.get("runs"), list) and "feedback" in row:
        return True
    return "inputs" in row and isinstance(fields.listed_in_text(row["inputs"]), dict) and "outputs" in row


def _is_phoenix(row: Row) -> bool:
    names = {"annotations"} & row.keys() and any(name.startswith("attributes") for name in row)
    return bool(names) or any(name in row for name in (*_MESSAGES, *_REPLIES))


_OF_TRACES = ("scores", "sessionId", "traceId", "observations", "totalCost")
READERS = (
    Reader(
        name="langfuse",
        sentence="Langfuse: items of data sets with references, and traces with their scores.",
        read=_langfuse,
        matches=_is_langfuse,
        reads={
            "input": "the prompt",
            "output": "the response",
            "expectedOutput": "a reference answer of the prompt",
            "expected_output": "a reference answer of the prompt",
            "scores": "ratings of the response",
            "trace": "the prompt, the response and its scores",
            "metadata": "metadata of the comparison",
            "model": "the source of the response",
            "providedModelName": "the source of the response",
        },
        ignores={"observations": "the steps of a trace; import them as OpenTelemetry spans"},
        survey=_survey(_langfuse_scores),
        loses="observations, costs, means of scores",
    ),
    Reader(
        name="langsmith",
        sentence="LangSmith: rows of data sets with references, runs with feedback, compared runs.",
        read=_langsmith,
        matches=_is_langsmith,
        reads={
            "inputs": "the prompt",
            "outputs": "the response, or a reference answer of the prompt",
            "reference_outputs": "a reference answer of the prompt",
            "runs": "the responses that are compared",
            "feedback": "ratings of the response, or the preference",
            "feedback_stats": "ratings of the response, where there is one of each name",
            "run_type": "whether the row is a run",
            "metadata": "metadata of the comparison",
        },
        survey=_survey(_langsmith_scores),
        loses="child runs, means of several people's feedback",
    ),
    Reader(
        name="phoenix",
        sentence="Phoenix: spans of models with their annotations.",
        read=_phoenix,
        matches=_is_phoenix,
        reads={
            "attributes": "the prompt and the response",
            **dict.fromkeys(_MESSAGES, "the prompt"),
            **dict.fromkeys(_REPLIES, "the response"),
            "attributes.llm.model_name": "the source of the response",
            "annotations": "ratings of the response",
        },
        ignores={
            "attributes.input.mime_type": "the value says it",
            "attributes.output.mime_type": "the value says it",
        },
        survey=_survey(_phoenix_scores),
        loses="spans without output, documents, embeddings",
    ),
)
