"""Recording of applications' requests: after the answer was sent, redacted, and never at its expense."""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import DatabaseError, IntegrityError, transaction

from annotation.choices import FinishReason
from annotation.exchange.formats.fields import FieldError
from annotation.exchange.formats.prompts_jsonl import parse_object
from annotation.models import ApiToken
from annotation.services.texts.completions import storable
from annotation.text.identity import content_hash
from training.engine.errors import EngineError
from training.engine.streams import events
from training.models import ApplicationRequest, Checkpoint, FeedbackSettings, RequestOptIn
from training.services.feedback.pseudonyms import pseudonym
from training.services.feedback.redaction import Redactor, TooSlowError

logger = logging.getLogger(__name__)

MOST_BYTES = 4 * 1024**2
"""A longer answer is passed on, and not stored."""
LONGEST_KEY = 100
LONGEST_USER = 512

_SAMPLING = (
    *("temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "seed", "n"),
    *("presence_penalty", "frequency_penalty"),
)
"""Numbers alone: a text among them would be stored without redaction."""


class NotStorableError(Exception):
    """A request that is not stored, and why, in a sentence for managers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    """Facts known before the answer: where it goes, and who asked."""

    settings_id: int
    project_id: int
    patterns: Sequence[str]
    checkpoint_id: int
    token_id: int
    token_name: str
    body: Mapping[str, Any]


class Recorder:
    """Takes an answer piece by piece, and stores it once all of it was sent."""

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan
        self._pieces: list[bytes] = []
        self._size = 0
        self._is_whole = False

    def add(self, piece: bytes) -> None:
        """Remember a piece of the answer."""
        self._size += len(piece)
        if self._size <= MOST_BYTES:
            self._pieces.append(piece)

    def end(self) -> None:
        """Note that the answer is whole: only then it is stored."""
        self._is_whole = self._size <= MOST_BYTES

    def store(self) -> ApplicationRequest | None:
        """Store the request with its answer, once. Return its row; None where it is not stored.

        Raises nothing: the answer is with the application already.
        """
        if not self._is_whole:
            return None
        self._is_whole = False
        try:
            return _store(self._plan, b"".join(self._pieces))
        except (NotStorableError, TooSlowError, DatabaseError) as error:
            _note_problem(self._plan, error)
        except Exception:
            logger.exception("A request of token %s was not stored", self._plan.token_name)
        return None


def recorder_for(*, token: ApiToken, checkpoint: Checkpoint, body: Mapping[str, Any]) -> Recorder | None:
    """Return the recorder of a request; None where project or token did not opt in. Raises nothing."""
    try:
        opted = (
            RequestOptIn.objects.filter(token=token, project__feedback_settings__stores_requests=True)
            .select_related("project__feedback_settings")
            .first()
        )
    except DatabaseError:
        logger.exception("No request of token %s is stored", token.name)
        return None
    # Another project's checkpoint answers with that project's data.
    if opted is None or checkpoint.project_id not in (None, opted.project_id):
        return None
    settings: FeedbackSettings = opted.project.feedback_settings
    return Recorder(
        _Plan(
            settings_id=settings.pk,
            project_id=opted.project_id,
            patterns=settings.patterns,
            checkpoint_id=checkpoint.pk,
            token_id=token.pk,
            token_name=token.name,
            body=body,
        )
    )


def _store(plan: _Plan, content: bytes) -> ApplicationRequest:
    redact = Redactor(plan.patterns)
    messages = _messages(plan.body.get("messages"), redact)
    key, choices = _answer(content, is_streamed=bool(plan.body.get("stream")))
    user = plan.body.get("user") or plan.body.get("safety_identifier") or ""
    redacted = [{**choice, "text": redact(choice["text"])} for choice in choices]
    try:
        with transaction.atomic():
            return ApplicationRequest.objects.create(
                project_id=plan.project_id,
                key=key,
                checkpoint_id=plan.checkpoint_id,
                token_id=plan.token_id,
                token_name=plan.token_name,
                pseudonym=pseudonym(plan.project_id, str(user)[:LONGEST_USER]) if user else "",
                messages=messages,
                content_hash=content_hash(messages),
                sampling={
                    name: plan.body[name]
                    for name in _SAMPLING
                    if isinstance(plan.body.get(name), int | float)
                },
                choices=redacted,
                redactions=redact.count,
                is_streamed=bool(plan.body.get("stream")),
            )
    except IntegrityError as error:
        raise NotStorableError("The model server gave two answers the same id.") from error


def _messages(sent: Any, redact: Redactor) -> list[dict[str, str]]:
    """Return the redacted chat. Raises `NotStorableError` for one that is no prompt here."""
    if not isinstance(sent, list):
        raise NotStorableError("Only chats are stored, and this request has no messages.")
    try:
        read = parse_object({"prompt": [_plain(turn) for turn in sent]}).messages
    except FieldError as error:
        raise NotStorableError(f"The chat is no prompt: {error}") from error
    return [{"role": turn["role"], "content": redact(turn["content"])} for turn in read]


def _plain(turn: Any) -> Any:
    """Return a turn with role and text alone; content in parts is joined where all parts are text."""
    if not isinstance(turn, Mapping) or turn.get("tool_calls"):
        raise NotStorableError("Chats with tool calls are not stored.")
    content = turn.get("content")
    if isinstance(content, list):
        if any(not isinstance(part, Mapping) or not isinstance(part.get("text"), str) for part in content):
            raise NotStorableError("Chats with images or sound are not stored.")
        content = "".join(part["text"] for part in content)
    role = "system" if turn.get("role") == "developer" else turn.get("role")
    return {"role": role, "content": storable(content) if isinstance(content, str) else content}


def _answer(content: bytes, *, is_streamed: bool) -> tuple[str, list[dict[str, Any]]]:
    """Return the id of an answer and its completions, in their order."""
    try:
        text = content.decode()
        # Not `splitlines`: a line separator may stand within a text.
        chunks = list(events(text.replace("\r\n", "\n").split("\n"))) if is_streamed else [json.loads(text)]
        texts, facts = _joined(chunks)
    except (ValueError, TypeError, AttributeError, EngineError) as error:
        raise NotStorableError(f"The answer cannot be read: {error}.") from error
    key = next((str(chunk["id"]) for chunk in chunks if chunk.get("id")), "")
    if not 1 <= len(key) <= LONGEST_KEY or not key.isascii() or not key.isprintable():
        raise NotStorableError("The model server gave the answer no id.")
    if not texts or any(not text.strip() for text in texts.values()):
        raise NotStorableError("The answer has no text.")
    if sorted(texts) != list(range(len(texts))):
        raise NotStorableError("The completions of the answer are not numbered from 0.")
    return key, [{"text": storable(texts[index]), **facts[index]} for index in sorted(texts)]


def _joined(chunks: Iterable[Mapping[str, Any]]) -> tuple[dict[int, str], dict[int, dict[str, Any]]]:
    """Return text and facts of each completion, from the pieces of a stream or from a whole answer."""
    texts: dict[int, str] = {}
    facts: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        if "error" in chunk:
            raise NotStorableError("The model server failed within the answer.")
        for index, piece, known in _pieces(chunk):
            texts[index] = texts.get(index, "") + piece
            facts.setdefault(index, {"seed": None, "finish_reason": "", "token_count": None}).update(known)
    return texts, facts


def _pieces(chunk: Mapping[str, Any]) -> Iterator[tuple[int, str, dict[str, Any]]]:
    for choice in chunk.get("choices") or ():
        message = choice.get("delta") or choice.get("message") or {}
        if message.get("tool_calls"):
            raise NotStorableError("Answers with tool calls are not stored.")
        known = {name: choice[name] for name in ("seed", "token_count") if isinstance(choice.get(name), int)}
        if choice.get("finish_reason"):
            known["finish_reason"] = str(FinishReason(choice["finish_reason"]))
        yield int(choice.get("index", 0)), str(message.get("content") or ""), known


def _note_problem(plan: _Plan, error: Exception) -> None:
    """Tell managers on the settings page why a request is missing."""
    known = isinstance(error, NotStorableError)
    message = str(error) if known else "The patterns took too long, so nothing of the request was stored."
    if isinstance(error, DatabaseError):
        logger.warning("A request of token %s was not stored: %s", plan.token_name, error)
        return
    try:
        FeedbackSettings.objects.filter(pk=plan.settings_id).update(problem=message[:500])
    except DatabaseError:
        logger.exception("%s", message)
