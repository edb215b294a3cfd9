"""Self-identification: passages in which a text names its model.

Three ways: it says who it is ("I am Claude", "As SmolLM, I …"), it says who made it ("an AI language
model developed by …"), or the name of its own source stands in it. A name that the prompt mentions
is no finding, for then every answer may speak of it. Nor are ordinary words that are also names of
models ("a llama", "a falcon"), unless the text says of itself that it is one.
"""

import itertools
import re
import string
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from ahocorasick_rs import BytesAhoCorasick, MatchKind

_NAMES = (
    r"chat[\s-]?gpt",
    r"gpt[\s-]?\d[\w.]*",
    r"smollm\w*",
    r"mixtral",
    r"ministral",
    r"qwen",
    r"deepseek",
    r"vicuna",
    r"olmo",
    r"tinyllama",
    r"stablelm",
    r"chatglm",
    r"internlm",
    r"baichuan",
    r"openassistant",
    r"nemotron",
    r"phi[\s-]?\d[\w.]*",
)
"""Names of models that are nothing else, in any case."""

_ALSO_WORDS = (
    r"Claude(?!\s+(?!Opus|Sonnet|Haiku|Instant)[A-Z][a-z])",
    "Gemini",
    "Gemma",
    "Bard",
    "Llama",
    "LLaMA",
    "Mistral",
    "Alpaca",
    "Zephyr",
    "Falcon",
    "Pythia",
    "Grok",
    "Kimi",
    "Copilot",
    "Orca",
    r"Tulu",
)
"""Names of models that are also words or names of people: found with a capital, where one names oneself."""

_NAME_WORDS = {
    *("gpt", "chatgpt", "smollm", "mixtral", "ministral", "qwen", "deepseek", "vicuna", "olmo", "tinyllama"),
    *("stablelm", "chatglm", "internlm", "baichuan", "openassistant", "nemotron", "phi", "claude", "gemini"),
    *("gemma", "bard", "llama", "mistral", "alpaca", "zephyr", "falcon", "pythia", "grok", "kimi", "copilot"),
    *("orca", "tulu"),
}
"""One of these words stands in each of the names above."""

_MAKERS = (
    "openai",
    "anthropic",
    "google deepmind",
    "google ai",
    "google",
    "deepmind",
    "meta ai",
    "meta",
    "mistral ai",
    "microsoft",
    "alibaba cloud",
    "alibaba",
    "deepseek",
    r"hugging\s?face",
    "stability ai",
    "cohere",
    "baidu",
    "moonshot ai",
    "zhipu ai",
    "xai",
    "nvidia",
    "ibm",
    "amazon",
    "eleutherai",
    "databricks",
    "lmsys",
    "ai2",
    "the allen institute for ai",
    "the technology innovation institute",
    "laion",
)

_AM = "(?:i['\u2019]m|i am|my name is|my name['\u2019]s|(?:you can |please )?call me|this is"
_AM += "|ich bin|ich heiße|mein name ist|je suis|je m['\u2019]appelle|soy|me llamo|mi nombre es)"
_MADE = (
    "(?:developed|created|made|trained|built|designed|fine-?tuned|entwickelt|trainiert|erstellt|geschaffen)"
)
_MADE_WORDS = {
    *("developed", "created", "made", "trained", "built", "designed", "finetuned", "tuned", "entwickelt"),
    *("trainiert", "erstellt", "geschaffen"),
}
_CALLED_WORDS = {"called", "named", "namens"}
_BY = r"(?:\s+and\s+\w+)?\s+(?:by|von|from)\s+(?:(?:researchers|engineers|the team)\s+(?:at|from)\s+)?"
_MACHINE = (
    r"(?:(?:[\w-]+\s+){0,3}?(?:ai|a\.i\.|llm|artificial intelligence|language model|chat\s?bot"
    r"|(?:virtual|digital) assistant|sprachmodell|ki)(?:[\s-]+(?:language model|model|assistant|chat\s?bot"
    r"|system|llm|sprachmodell|modell|assistent))*)"
)
_MACHINES_AND_MAKERS = (
    *("llm", "a.i.", "artificial intelligence", "language model", "assistant", "sprachmodell"),
    *(maker for maker in _MAKERS if len(maker) > 3 and "\\" not in maker),
    "hugging",
)
"""Without one of these, or of the short ones below, nobody says what they are or who made them."""
# A pattern that begins with one plain word is found many times faster than one of several words.
_MADE_BY = {
    **{word.encode(): re.compile(rf"{word}\s+(?:and|by|von|from)\s") for word in _MADE_WORDS},
    **{word.encode(): re.compile(rf"{word}\s") for word in _CALLED_WORDS},
}
_SHORT_NAMES = re.compile(r"(?<!\w)(?:ai2?|ki|xai|ibm|chat\s?bot)(?!\w)")
_CAPITALISED = r"(?-i:(?:the\s+)?[A-Z][\w&]*(?:[.-]\w+)*(?:\s+[A-Z][\w&-]*){0,3})"

_SAYS_WHAT_IT_IS = re.compile(
    rf"(?<!\w)(?:{_AM}|as|als)\s+(?:an?|the|ein|eine|une?|una?)\s+{_MACHINE},?\s+"
    rf"(?:(?:called|named|namens)\s+(?P<name>{_CAPITALISED})"
    rf"|(?:(?:that|which|who)\s+(?:was|is)\s+)?{_MADE}{_BY}(?P<maker>{_CAPITALISED}))",
    re.IGNORECASE,
)
_SAYS_WHO_MADE_IT = re.compile(
    r"(?<!\w)(?:i was|i am|i['\u2019]m|i have been|i['\u2019]ve been)\s+(?:\w+\s+)?"
    rf"{_MADE}{_BY}(?P<maker>{'|'.join(_MAKERS)})(?!\w)",
    re.IGNORECASE,
)

_LOWER_LETTERS = frozenset(letter.encode() for letter in string.ascii_lowercase)
_ONLY_LETTERS = bytes(byte if byte in string.ascii_lowercase.encode() else ord(" ") for byte in range(256))
_LETTERS = re.compile(r"[^\W\d_]+")
_PARTS = re.compile(r"[\s/_:@+-]+")
_GENERIC = re.compile(
    r"(?:v|r|b|m|q|bs|lr|step|steps|epoch|epochs|round|run|seed|iter|iteration|checkpoint|ckpt|version"
    r"|policy|reward|model|part|set|batch|sft|dpo|ppo|kto|ipo|grpo|rloo|lora|rank|test|data|task|int|fp|bf)\d*"
)
_FEWEST_LETTERS = 4


@dataclass(frozen=True, slots=True)
class SelfNaming:
    """A stretch of a text in which its model is named, in code points, half open."""

    start: int
    end: int
    quote: str


def find_self_naming(text: str, *, prompt: str, source_name: str) -> SelfNaming | None:
    """The first place where `text` tells which model wrote it, or None.

    `prompt` is all that was asked, context included; `source_name` the name of the completion's source.
    """
    matches = list(_matches(text, source_name))
    if not matches:
        return None
    squeezed_prompt = _squeezed(prompt)
    spans = [
        (match.start(), match.end()) for match, name in matches if not _is_mentioned(name, squeezed_prompt)
    ]
    if not spans:
        return None
    start, end = min(spans)
    return SelfNaming(start, end, text[start:end])


def _matches(text: str, source_name: str) -> Iterator[tuple[re.Match[str], str]]:
    # Nearly every text ends at the first look, which takes far less time than the patterns: whether any
    # telling word stands in it.
    lowered = text.lower()
    telling_words = _telling_words_in(lowered, source_name)
    # Of this family any word that begins so is a name: "SmolLMs".
    is_named = "smollm" in lowered or any(word in lowered for word in _other_words_of(source_name))
    if not telling_words and not is_named:
        return
    made_words = telling_words & _MADE_BY.keys()
    patterns = []
    if is_named or len(telling_words) > len(made_words) or made_words & _words_of_source(source_name):
        patterns.append(_naming_oneself(source_name))
    if made_words and _may_say_who_made_it(lowered, made_words):
        patterns += [_SAYS_WHAT_IT_IS, _SAYS_WHO_MADE_IT]
    for pattern in patterns:
        for match in pattern.finditer(text):
            yield match, next(name for name in match.groups() if name)
    own_name = _own_name(source_name) if patterns else None
    for match in own_name.finditer(text) if own_name else ():
        yield match, match.group()


def _may_say_who_made_it(lowered: str, made_words: Iterable[bytes]) -> bool:
    return any(_MADE_BY[word].search(lowered) for word in made_words) and (
        any(word in lowered for word in _MACHINES_AND_MAKERS) or _SHORT_NAMES.search(lowered) is not None
    )


def _telling_words_in(lowered: str, source_name: str) -> set[bytes]:
    """Return the telling words of a text. A word is what stands between other signs than a to z."""
    text = lowered.encode("utf-8", "replace")
    finder, words = _finder(source_name)
    return {
        words[number]
        for number, start, end in finder.find_matches_as_indexes(text)
        # A slice, because there may be nothing before or after.
        if text[start - 1 : start] not in _LOWER_LETTERS and text[end : end + 1] not in _LOWER_LETTERS
    }


@lru_cache(maxsize=256)
def _finder(source_name: str) -> tuple[BytesAhoCorasick, tuple[bytes, ...]]:
    """Finds all telling words in one pass over a text; and the words by the numbers that it gives.

    Of overlapping finds the first and longest counts, so that a word is never hidden by a part of it.
    """
    words = tuple(
        sorted(_words_of_source(source_name) | {word.encode() for word in _NAME_WORDS} | _MADE_BY.keys())
    )
    return BytesAhoCorasick(words, matchkind=MatchKind.LeftmostLongest), words


@lru_cache(maxsize=256)
def _words_of_source(name: str) -> frozenset[bytes]:
    return frozenset(name.lower().encode("utf-8", "replace").translate(_ONLY_LETTERS).split())


@lru_cache(maxsize=256)
def _other_words_of(name: str) -> tuple[str, ...]:
    """The words of a name that are not of the letters a to z alone."""
    return tuple(word for word in _LETTERS.findall(name.lower()) if not word.isascii())


@lru_cache(maxsize=256)
def _naming_oneself(source_name: str) -> re.Pattern[str]:
    """ "I am NAME" and "As NAME, I", with the names that are known and the source's own."""
    patterns = [re.escape(source_name)] if len(source_name) >= _FEWEST_LETTERS else []
    patterns += [re.escape(_letters(part).capitalize()) for part in _telling_parts(source_name)]
    patterns += [re.escape(_letters(part)) for part in _telling_parts(source_name) if part[0].isupper()]
    name = rf"(?:{'|'.join(_NAMES)}|(?-i:{'|'.join([*_ALSO_WORDS, *_capitalised_only(patterns)])}))"
    # A version may follow: "Claude 3.5 Sonnet", "Llama-3".
    version = r"(?:[\s-]?\d[\w.]*\w|[\s-]?\d)?"
    return re.compile(
        rf"(?<!\w){_AM}\s+(?P<is>{name}){version}(?![\w]|['\u2019]s\b)"
        rf"|(?<!\w)(?<!such )(?<!known )as\s+(?P<as>{name}){version},?\s+(?:i|my|we)\b"
        rf"|(?<!\w)als\s+(?P<als>{name}){version}\s+\w+\s+(?:ich|mir)\b",
        re.IGNORECASE,
    )


@lru_cache(maxsize=256)
def _own_name(source_name: str) -> re.Pattern[str] | None:
    """The name of the source, or a part of it that no one writes by chance."""
    names = [re.escape(source_name)] if _is_telling_name(source_name) else []
    for word, number in itertools.pairwise(_PARTS.split(source_name)):
        # "gpt-4", "Llama-3": what is a word alone is a name with its number.
        if word.lower() in _NAME_WORDS and re.fullmatch(r"\d(?:\.\d)?", number):
            names.append(rf"{re.escape(word)}[\s-]?{re.escape(number)}")
    for part in _telling_parts(source_name):
        letters = _letters(part)
        if re.search("[a-z][A-Z]", part) or re.fullmatch("|".join(_NAMES), letters, re.IGNORECASE):
            names.append(rf"{re.escape(letters)}(?:[\s-]?\d[\w.]*)?")
        elif letters != part:
            # "qwen2", "llama3": the word alone may be ordinary, with its number it is a name.
            names.append(rf"{re.escape(letters)}[\s-]?{re.escape(part[len(letters) :])}")
    return re.compile(rf"(?<!\w)(?:{'|'.join(names)})(?!\w)", re.IGNORECASE) if names else None


def _is_telling_name(name: str) -> bool:
    several = len(_PARTS.split(name)) > 1
    return len(name) > _FEWEST_LETTERS and several and bool(re.search(r"\d|[a-z][A-Z]", name))


def _telling_parts(name: str) -> list[str]:
    """The parts of a name that are words of their own: no size, no date, no step, no round."""
    return [
        part
        for part in _PARTS.split(name)
        if len(_letters(part)) >= _FEWEST_LETTERS and not _GENERIC.fullmatch(part.casefold())
    ]


def _letters(part: str) -> str:
    """Return the letters at the beginning of a part: "SmolLM" of "SmolLM2"."""
    return "".join(itertools.takewhile(str.isalpha, part))


def _capitalised_only(names: list[str]) -> list[str]:
    return [name for name in names if name[0].isupper() or re.search(r"\d", name)]


def _is_mentioned(name: str, squeezed_prompt: str) -> bool:
    squeezed = _squeezed(name)
    word = _letters(squeezed)
    return squeezed in squeezed_prompt or (len(word) >= _FEWEST_LETTERS and word in squeezed_prompt)


def _squeezed(text: str) -> str:
    """The text in which "Chat-GPT" and "chat gpt" are one."""
    return re.sub(r"[\W_]+", "", text.casefold())
