"""A fast tokenizer from the metadata of a GGUF file, or the one that lies beside it.

The file holds tokens and merges, and names how texts are split before: the splits that are known here come
from the tokenizers of their makers. Other vocabularies (SentencePiece; splits without a name here) need the
makers' `tokenizer.json` beside the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from training.contract import ContractError
from training.rlhf.gguf_files.header import GgufFile

TOKENIZER_FILE = "tokenizer.json"
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5
_BESIDE = f"put the model's {TOKENIZER_FILE} (with tokenizer_config.json) beside the file, and add it again"

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def _by_pattern(pattern: str) -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _by_gpt2(*, digits: bool) -> Any:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)
    if not digits:
        return byte_level
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])


_SPLITS = {
    "gpt-2": lambda: _by_gpt2(digits=False),
    "smollm": lambda: _by_gpt2(digits=True),
    "llama-bpe": lambda: _by_pattern(_LLAMA3),
    "qwen2": lambda: _by_pattern(_QWEN2),
    "deepseek-r1-qwen": lambda: _by_pattern(_QWEN2),
}
"""By `tokenizer.ggml.pre`."""
_WHOLE_WORDS = frozenset({"llama-bpe"})
"""Their makers take a word that is a token as that token, whatever the merges give."""
_NORMALISED = frozenset({"qwen2", "deepseek-r1-qwen"})
"""Their makers bring texts into Unicode's form NFC."""


def read_tokenizer(file: GgufFile, folder: Path, *, context: int) -> Any:
    """Return the tokenizer in `folder`, which must have the file's tokens, or the metadata's.

    Raise `ContractError` where neither can be had, and without a chat template.
    """
    tokens = [str(token) for token in file.value("tokenizer.ggml.tokens")]
    if (folder / TOKENIZER_FILE).is_file():
        tokenizer = _read_tokenizer_files(file, folder, tokens)
    else:
        tokenizer = _built(file, tokens)
    tokenizer.model_max_length = context
    if not tokenizer.chat_template:
        tokenizer.chat_template = file.value("tokenizer.chat_template", None)
    if not tokenizer.chat_template:
        raise ContractError(
            f"{file.path.name} has no chat template (tokenizer.chat_template); choose a model that was made "
            "for chats, or put its chat_template.jinja beside the file"
        )
    return tokenizer


def _read_tokenizer_files(file: GgufFile, folder: Path, tokens: list[str]) -> Any:
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ContractError(f"{TOKENIZER_FILE} beside {file.path.name} cannot be read ({error})") from error
    kinds = file.value("tokenizer.ggml.token_type", [])
    for place, (token, known) in enumerate(
        zip(tokens, tokenizer.convert_ids_to_tokens(range(len(tokens))), strict=True)
    ):
        padding = known is None and place < len(kinds) and kinds[place] == _UNUSED
        # Tokens of spaces alone are written with spaces or as SentencePiece does.
        if not padding and (known or "").replace("\u2581", " ") != token.replace("\u2581", " "):
            raise ContractError(
                f"{TOKENIZER_FILE} beside {file.path.name} belongs to another model: its token {place} is "
                f"{known!r}, and the file's is {token!r}"
            )
    return tokenizer


def _built(file: GgufFile, tokens: list[str]) -> PreTrainedTokenizerFast:
    kind, split = file.value("tokenizer.ggml.model", ""), file.value("tokenizer.ggml.pre", "")
    if kind != "gpt2" or split not in _SPLITS:
        named = f"tokenizer of kind {kind!r}" if kind != "gpt2" else f"tokenizer split as {split!r}"
        raise ContractError(
            f"{file.path.name} has a {named}, which is not built from its metadata; {_BESIDE}"
        )
    merges = [tuple(str(merge).split(" ", 1)) for merge in file.value("tokenizer.ggml.merges")]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    try:
        backend = Tokenizer(
            models.BPE(vocab=vocabulary, merges=merges, ignore_merges=split in _WHOLE_WORDS)  # type: ignore[arg-type]
        )
    except Exception as error:  # the Rust library raises no class of its own
        raise ContractError(
            f"{file.path.name}: the vocabulary cannot be used ({error}); {_BESIDE}"
        ) from error
    if split in _NORMALISED:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _SPLITS[split]()
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    for token, kind in zip(tokens, file.value("tokenizer.ggml.token_type", []), strict=False):
        if kind in (_CONTROL, _USER_DEFINED):
            added = AddedToken(token, normalized=False, special=kind == _CONTROL)
            (backend.add_special_tokens if kind == _CONTROL else backend.add_tokens)([added])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, clean_up_tokenization_spaces=False, **_special_tokens(file, tokens)
    )


def _special_tokens(file: GgufFile, tokens: list[str]) -> dict[str, str]:
    end = file.value("tokenizer.ggml.eos_token_id")
    ids = {
        "bos_token": file.value("tokenizer.ggml.bos_token_id", None),
        "eos_token": end,
        "pad_token": file.value("tokenizer.ggml.padding_token_id", end),
        "unk_token": file.value("tokenizer.ggml.unknown_token_id", None),
    }
    return {name: tokens[place] for name, place in ids.items() if place is not None}


def end_ids(file: GgufFile) -> list[int]:
    """Return the tokens that end a completion: those of the sequence and of a turn, where they differ."""
    ids = [file.value(f"tokenizer.ggml.{name}_token_id", None) for name in ("eos", "eot")]
    return sorted({int(token_id) for token_id in ids if token_id is not None})
