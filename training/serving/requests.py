"""Request bodies and their validation. Imports no torch.

What OpenAI's interface knows and this server does not do is refused by name, unless it asks
for nothing: see `NEUTRAL_FIELDS`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from training.contract import ContractError
from training.contract.snapshot import Message, Passage
from training.contract.validation import Population
from training.rlhf.sampling import (
    MAX_ALTERNATIVES,
    MAX_SEED,
    MAX_STOP_STRINGS,
    SamplingParameters,
)

MAX_SAMPLES = 16
MAX_PROMPTS = 16
MAX_EMBEDDED = 256
"""Texts of one request for embeddings."""
MAX_TOOLS = 128
DEFAULT_CHAT_TOKENS = 512
"""`max_tokens` of a chat that names none; what fits into the context where that is less."""
DEFAULT_COMPLETION_TOKENS = 16

_ANYTHING: Any = object()
"""Marks fields of accounts, caches and logs: no value of them asks for anything of an answer."""

NEUTRAL_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "metadata": (_ANYTHING,),
    "min_p": (0,),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0,),
    "prompt_cache_key": (_ANYTHING,),
    "prompt_cache_options": (_ANYTHING,),
    "prompt_cache_retention": (_ANYTHING,),
    "reasoning_effort": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "safety_identifier": (_ANYTHING,),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Fields of requests that are accepted with values that ask for nothing, these and null, and refused with
others where the request has no field of that name."""

NEUTRAL_CHAT_FIELDS: Mapping[str, tuple[Any, ...]] = {
    name: values
    for name, values in NEUTRAL_FIELDS.items()
    # What these ask for depends on the tools.
    if name not in {"parallel_tool_calls", "tool_choice"}
}
"""The same for chats, which take tools."""

NEUTRAL_MESSAGE_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    # Chat templates have no place for it.
    "name": (_ANYTHING,),
    "reasoning": (),
    "reasoning_content": (),
    "refusal": (),
    "tool_call_id": (),
    "tool_calls": ([],),
}
"""The same for fields of a message: an answer of this server, or of another, is accepted when it is sent
back."""


def _asks_for_nothing(value: Any, neutral: tuple[Any, ...]) -> bool:
    if value is None:
        return True
    # To Python true is 1, to JSON it is not.
    return any(
        each is _ANYTHING or (each == value and isinstance(each, bool) == isinstance(value, bool))
        for each in neutral
    )


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _as_text(value: Any) -> Any:
    """Content given as a list of text parts, put together."""
    if not isinstance(value, list):
        return value
    texts = []
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError("only parts of the type 'text' are supported")
        texts.append(part["text"])
    return "".join(texts)


FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
"""Names of functions and of formats."""


def _all_integers(values: list[Any]) -> bool:
    return all(type(value) is int for value in values)


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    neutral_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _without_neutral_fields(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        neutral = cls.neutral_fields
        return {
            name: value
            for name, value in body.items()
            if name not in neutral or not _asks_for_nothing(value, neutral[name])
        }


class RequestBody(_Body):
    """Fields of every request."""

    model: str
    timeout: Annotated[float, Field(gt=0)] | None = None
    """Extension: seconds that the answer may take; the server's own bound stays. The header
    X-Request-Timeout says the same."""


class PlainMessage(_Body):
    """One turn of a chat without tools."""

    neutral_fields = NEUTRAL_MESSAGE_FIELDS

    role: Literal["system", "developer", "user", "assistant"]
    """A developer's message is one of the system: chat templates know no developer."""
    content: Annotated[str, BeforeValidator(_as_text)]

    def as_message(self) -> Message:
        """Return the message as the contract names it."""
        return Message(role="system" if self.role == "developer" else self.role, content=self.content)


class CalledFunction(_Body):
    """Function and arguments of a call."""

    name: FunctionName
    arguments: str
    """A JSON object as text."""

    @field_validator("arguments")
    @classmethod
    def _is_object(cls, value: str) -> str:
        try:
            is_object = isinstance(json.loads(value), dict)
        except (ValueError, RecursionError):
            is_object = False
        if not is_object:
            raise ValueError("the text of a JSON object is expected")
        return value


class ToolCall(_Body):
    """A call of a function, as the model wrote it."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(_Body):
    """One turn of a chat, with the calls of an assistant and the results of tools."""

    neutral_fields = NEUTRAL_MESSAGE_FIELDS

    role: Literal["system", "developer", "user", "assistant", "tool"]
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    content: Annotated[str | None, BeforeValidator(_as_text), Field(validate_default=True)] = None

    @field_validator("content")
    @classmethod
    def _has_content(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None and not info.data.get("tool_calls"):
            raise ValueError("a text is expected; only a message with 'tool_calls' may have none")
        return value

    @field_validator("tool_calls")
    @classmethod
    def _calls_are_the_assistants(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and info.data.get("role") != "assistant":
            raise ValueError("only a message of the assistant has them")
        return value

    @field_validator("tool_call_id")
    @classmethod
    def _results_are_the_tools(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("role") != "tool":
            raise ValueError("only a message of the role 'tool' has one")
        return value


class JsonSchema(_Body):
    """Schema of a response."""

    name: FunctionName
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None
    """Every schema is kept to strictly."""


class ResponseFormat(_Body):
    """Format of a response; that of type "text" asks for nothing."""

    type: Literal["json_object", "json_schema"]
    json_schema: Annotated[JsonSchema | None, Field(validate_default=True)] = None

    @field_validator("json_schema")
    @classmethod
    def _has_its_schema(cls, value: JsonSchema | None, info: ValidationInfo) -> JsonSchema | None:
        if "type" in info.data and (value is not None) != (info.data["type"] == "json_schema"):
            raise ValueError("the type 'json_schema' needs one, and no other type has one")
        return value

    @property
    def json_schema_of_response(self) -> dict[str, Any]:
        """Return the schema that the response is of."""
        return self.json_schema.schema_ if self.json_schema else {"type": "object"}


class Function(_Body):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of its arguments, which are an object; none, and it has no parameters."""
    strict: bool | None = None
    """Arguments are always of the schema."""

    @field_validator("parameters")
    @classmethod
    def _is_of_objects(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None and value.setdefault("type", "object") != "object":
            raise ValueError("a schema of the type 'object' is expected")
        return value

    @property
    def arguments_schema(self) -> dict[str, Any]:
        """Return the schema of its arguments."""
        if self.parameters is None:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        return self.parameters


class Tool(_Body):
    """A tool that the model may use."""

    type: Literal["function"]
    function: Function


class _NamedFunction(_Body):
    name: str


class NamedTool(_Body):
    """The function that must be called."""

    type: Literal["function"]
    function: _NamedFunction


def _as_tool_choice(value: Any) -> Any:
    # A union's own errors name the branches of the union, not what was sent.
    if value in ("none", "auto", "required") or value is None:
        return value
    try:
        return NamedTool.model_validate(value)
    except ValidationError:
        raise ValueError(
            '\'none\', \'auto\', \'required\' or {"type": "function", "function": {"name": …}} is expected'
        ) from None


class StreamOptions(_Body):
    """Options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class SamplingRequest(RequestBody):
    """Fields that chat and text completions share."""

    neutral_fields = NEUTRAL_FIELDS

    n: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    """Extension: 0 and -1 are off."""
    seed: Annotated[int, Field(ge=0, le=MAX_SEED - MAX_SAMPLES * MAX_PROMPTS)] | None = None
    stop: (
        Annotated[
            list[Annotated[str, Field(min_length=1)]],
            BeforeValidator(_as_list),
            Field(max_length=MAX_STOP_STRINGS),
        ]
        | None
    ) = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    """Taken and not used, as by every server that has no accounts."""

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("'stream_options' needs 'stream': true")
        return self

    @property
    def samples(self) -> int:
        """Completions per prompt."""
        return self.n or 1

    @property
    def token_limit(self) -> int | None:
        """Return the most tokens that the client wants; None when it did not say."""
        return self.max_tokens

    @property
    def alternatives(self) -> int | None:
        """Return the number of likeliest tokens to report; None for no log-probabilities."""
        raise NotImplementedError

    def parameters(self, *, seed: int, max_tokens: int) -> SamplingParameters:
        """Return the request as the sampler takes it."""
        return SamplingParameters(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(self.top_k or 0, 0),
            max_tokens=max_tokens,
            stop=tuple(self.stop or ()),
            seed=seed,
            alternatives=self.alternatives,
        )


class ChatRequest(SamplingRequest):
    """POST /v1/chat/completions"""

    neutral_fields = NEUTRAL_CHAT_FIELDS

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    """Extension, as vLLM has it: with `add_generation_prompt` false, the answer goes on from the text of the
    last message, which is the assistant's, and holds what follows it alone."""
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Annotated[str | NamedTool | None, BeforeValidator(_as_tool_choice)] = None
    parallel_tool_calls: bool | None = None
    """False allows one call at most."""

    @field_validator("tools")
    @classmethod
    def _names_differ(cls, value: list[Tool] | None) -> list[Tool] | None:
        names = [tool.function.name for tool in value or ()]
        if len(set(names)) < len(names):
            raise ValueError("two functions have the same name")
        return value

    @field_validator("tool_choice")
    @classmethod
    def _choice_is_a_tool(cls, value: Any, info: ValidationInfo) -> Any:
        names = [tool.function.name for tool in info.data.get("tools") or ()]
        if isinstance(value, NamedTool) and value.function.name not in names:
            raise ValueError(f"'tools' has no function {value.function.name!r}")
        if value == "required" and not names:
            raise ValueError("'required' needs 'tools'")
        return value

    @model_validator(mode="after")
    def _continues_an_answer(self) -> Self:
        continues = bool(self.continue_final_message)
        if continues == (self.add_generation_prompt in (None, True)):
            raise ValueError(
                "'continue_final_message': true needs 'add_generation_prompt': false, and the reverse"
            )
        last = self.messages[-1]
        text = last.content or "" if last.role == "assistant" and not last.tool_calls else ""
        if continues and (len(self.messages) < 2 or not text.strip()):
            raise ValueError(
                "'continue_final_message', with 'add_generation_prompt': false, needs a last message of the "
                "assistant with a text"
            )
        if continues and (self.response_format is not None or self.callable_tools):
            raise ValueError("'continue_final_message' is not supported with 'response_format' or 'tools'")
        return self

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("'top_logprobs' needs 'logprobs': true")
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise ValueError("'max_tokens' and 'max_completion_tokens' differ; give one of them")
        return self

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def prefix(self) -> str | None:
        """Return the text from which the answer goes on; None for one from its beginning."""
        return self.messages[-1].content if self.continue_final_message else None

    @property
    def answered(self) -> list[ChatMessage]:
        """Return the messages that are answered."""
        return self.messages[:-1] if self.continue_final_message else self.messages

    @property
    def callable_tools(self) -> list[Function]:
        """Return the functions that the answer may call."""
        tools = [tool.function for tool in self.tools or () if self.tool_choice != "none"]
        if isinstance(self.tool_choice, NamedTool):
            return [tool for tool in tools if tool.name == self.tool_choice.function.name]
        return tools

    @property
    def constraining_field(self) -> str:
        """Return the field that the answer's grammar comes from."""
        return "tools" if self.callable_tools else "response_format"

    @property
    def must_call(self) -> bool:
        """Return whether the answer is a call."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool)


class CompletionRequest(SamplingRequest):
    """POST /v1/completions"""

    prompt: list[str | list[int]]
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    """0 writes nothing, for `echo`."""
    logprobs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = None
    echo: bool | None = None
    """Also give the prompt, before what continues it, with the log-probability of each token after the first
    where `logprobs` asks for them."""
    best_of: int | None = None
    return_token_ids: bool | None = None
    """Extension, as vLLM has it: each choice also tells the ids of all tokens drawn, the end token and what a
    stop string cut off among them, and the log-probabilities, where asked for, are of all of them too."""

    @field_validator("prompt", mode="wrap")
    @classmethod
    def _prompts(cls, value: Any, _handler: Any) -> list[str | list[int]]:
        # A union's own errors name the branches of the union, not what was sent.
        is_single = isinstance(value, str) or (isinstance(value, list) and value and _all_integers(value))
        if is_single:
            value = [value]
        if not isinstance(value, list) or not 1 <= len(value) <= MAX_PROMPTS:
            raise ValueError(f"a text, or a list of 1 to {MAX_PROMPTS} texts, is expected")
        texts = all(isinstance(item, str) for item in value)
        tokens = all(isinstance(item, list) and _all_integers(item) for item in value)
        if not (texts or tokens):
            raise ValueError("each prompt must be a text or a list of token ids, all of one kind")
        return value

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.best_of is not None and self.best_of != self.samples:
            raise ValueError("'best_of' is not supported; leave it out")
        if self.return_token_ids and self.stream:
            raise ValueError("'return_token_ids' is not supported with 'stream'; leave one of them out")
        for name in ("stream", "return_token_ids"):
            if self.echo and getattr(self, name):
                raise ValueError(f"'echo' is not supported with '{name}'; leave one of them out")
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("'max_tokens': 0 needs 'echo': true")
        return self

    @property
    def alternatives(self) -> int | None:
        return self.logprobs


class ContextPassage(_Body):
    """One passage of context."""

    title: str
    sentences: list[str]


class _ChatRead(RequestBody):
    """A chat whose answers are given."""

    messages: Annotated[list[PlainMessage], Field(min_length=1)]

    def chat(self) -> list[Message]:
        """Return the messages as the contract names them."""
        return [message.as_message() for message in self.messages]


class ScoreRequest(_ChatRead):
    """POST /v1/score"""

    completions: Annotated[list[str], Field(min_length=1, max_length=64)]
    context: list[ContextPassage] | None = None
    """Read only by reward models that were trained with context."""
    heads: bool | None = None
    """Tell what every head says, not the score alone: the members of an ensemble, ratings; of segments
    {start, end, reward}, places in code points and the log-odds that the segment is faultless; of groups of
    annotators each one's reward."""
    reward: Literal["common", "groups", "worst_group"] = "common"
    """Whose reward the scores are: that of all annotators, the mean of groups, or the worst-off group's."""
    groups: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Weight of each group that counts; empty counts all alike."""

    @model_validator(mode="after")
    def _has_population(self) -> Self:
        try:
            self.population()
        except ContractError as error:
            raise ValueError(str(error)) from None
        return self

    def population(self) -> Population:
        """Return whose reward is asked for."""
        return Population(reward=self.reward, groups=self.groups)

    def passages(self) -> list[Passage]:
        """Return the context as the contract names it."""
        return [
            Passage(title=passage.title, sentences=tuple(passage.sentences)) for passage in self.context or ()
        ]


class EmbeddingRequest(RequestBody):
    """POST /v1/embeddings"""

    neutral_fields = {"user": (_ANYTHING,)}

    input: Annotated[list[str], BeforeValidator(_as_list), Field(min_length=1, max_length=MAX_EMBEDDED)]
    encoding_format: Literal["float", "base64"] | None = None
    """base64: little-endian float32, as OpenAI's client asks for by itself."""
    truncate_prompt_tokens: Annotated[int, Field(ge=1)] | None = None
    """Extension, as vLLM has it: only so many tokens at the end of each text are read."""


class DivergenceRequest(_ChatRead):
    """POST /v1/kl"""

    completion: str
    reference: str | None = None
    """The model that it is compared with; left out, the base."""
