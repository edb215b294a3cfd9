"""Write a checkpoint as a folder that others load without Rondo: `python -m training.rlhf.export`.

    python -m training.rlhf.export CHECKPOINT --base FOLDER --out FOLDER            the adapter, for peft
    python -m training.rlhf.export CHECKPOINT --base FOLDER --out FOLDER --merged   a whole model

Both have the tokenizer and a model card with what the manifest says. A reward model's heads lie beside it
in `heads.safetensors`; its card says how a score is read. Merged, it is a sequence classifier of transformers
with the score as its one logit, where that form can say it.
"""

from __future__ import annotations

import argparse
import copy
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)
from transformers.utils import logging as transformers_logging

from training.contract import ContractError, read_manifest
from training.contract.checkpoint import HEADS_FILE, Manifest, base_digest, manifest_digest
from training.rlhf.model.adapters import ADAPTER_CONFIG_FILE, ADAPTER_FILE, holds_all_weights
from training.rlhf.model.backbone import OFFSET, READS, SCORE
from training.rlhf.model.base_model import read_model
from training.rlhf.model.templates import add_turn_end, turn_end_id

# ── A reward model as transformers' sequence classification: one label, whose logit is the score ──


def make_classifier(model: Any, heads: Mapping[str, Tensor], tokenizer: Any) -> Any | None:
    """Return a reward model's transformer with its head `score` as one classifier, and let the tokenizer pad
    as that one expects it.

    An ensemble's head becomes its mean. None where the form cannot say it: heads that read elsewhere than at
    the last token, or add a constant, and families without such a form in transformers.
    """
    config = copy.deepcopy(model.config)
    known = type(config) in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    if SCORE not in heads or READS in heads or OFFSET in heads or not known:
        return None
    config.num_labels = 1
    config.pad_token_id = _padding_id(tokenizer, int(config.get_text_config().vocab_size))
    with torch.device("meta"):
        classifier: Any = AutoModelForSequenceClassification.from_config(config, dtype=model.dtype)
    weight = heads[SCORE].mean(0, keepdim=True).to(model.dtype)
    score = getattr(classifier, "score", None)
    if not isinstance(score, nn.Linear) or score.weight.shape != weight.shape or score.bias is not None:
        return None
    weights = model.base_model.state_dict()
    if weights.keys() != classifier.base_model.state_dict().keys():
        return None
    classifier.base_model.load_state_dict(weights, assign=True)
    score.load_state_dict({"weight": weight}, assign=True)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(config.pad_token_id)
    return classifier


def _padding_id(tokenizer: Any, size: int) -> int:
    """Return an id that no row ends with.

    The form reads a row's last token that is not padding: with the end of a turn as padding, which many
    tokenizers have, it would read the token before.
    """
    end = turn_end_id(tokenizer)
    special = sorted(id for id, token in tokenizer.added_tokens_decoder.items() if token.special)
    candidates = [
        tokenizer.pad_token_id,
        tokenizer.unk_token_id,
        tokenizer.bos_token_id,
        *special,
        *range(size),
    ]
    return int(next(id for id in candidates if id is not None and id != end and id < size))


_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_CARD = """---
library_name: {library}
base_model: {base}
tags: [rondo, {kind}]
---

# {name}

A {what}, trained from human judgments with Rondo. The licence of {base} holds for it too.

| | |
|---|---|
{facts}

{held_out}{scores}"""

_SCORES = """## Scores

`heads.safetensors` holds a matrix (outputs, hidden) for each of the heads {heads}. A score is the last hidden
state, after the final norm, at the last token of prompt and answer (the token that ends the turn), times that
matrix; the mean where a head has several outputs. Names with a dot are what was learned beside a head. Where
`score.reads` is there, the score reads the block that it names first, from 1, over the completion's tokens:
their mean where it names 1 second, else the last; `score.offset` is added.
"""

_NO_CLASSIFIER = """
transformers' sequence classification cannot read this score: it would load with a random head.
"""

_CLASSIFIER = """
`AutoModelForSequenceClassification.from_pretrained` loads the folder; its one logit is the head `score`. Give
it prompt and answer as the chat template writes them, up to the token that ends the turn ({end}) and nothing
after it. The tokenizer pads with {pad}, which the classifier looks past.
"""


def export_checkpoint(
    checkpoint: Path, *, base: Path, out: Path, merged: bool, dtype: str = "auto", card: Path | None = None
) -> None:
    """Write the folder `out`, as a whole or not at all. card: a model card in place of the manifest's own.

    Raises `ContractError` where `out` is there already, the checkpoint is damaged or holds no adapter, or
    `base` is not the one that it was trained on.
    """
    if out.exists():
        raise ContractError(f"{out}: something is here already; name a folder that is not there yet")
    manifest = _checked(checkpoint, base, merged=merged)
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        tokenizer = AutoTokenizer.from_pretrained(base, local_files_only=True, trust_remote_code=False)
        remark = ""
        if merged:
            heads = load_file(checkpoint / HEADS_FILE) if HEADS_FILE in manifest.files else {}
            remark = _write_merged(_merged(checkpoint, base, dtype), heads, tokenizer, partial)
        else:
            for name in (ADAPTER_FILE, ADAPTER_CONFIG_FILE):
                shutil.copyfile(checkpoint / name, partial / name)
        tokenizer.save_pretrained(partial)
        if HEADS_FILE in manifest.files:
            shutil.copyfile(checkpoint / HEADS_FILE, partial / HEADS_FILE)
        message = (
            card.read_text(encoding="utf-8")
            if card is not None
            else model_card(manifest, digest=manifest_digest(checkpoint), merged=merged)
        )
        message += remark
        (partial / "README.md").write_text(message, encoding="utf-8")
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def model_card(manifest: Manifest, *, digest: str, merged: bool) -> str:
    spec = manifest.spec
    what = "reward model" if manifest.kind == "reward" else "language model"
    facts = {
        "checkpoint": digest,
        "base model": f"{manifest.base_model}, {manifest.base_digest}",
        "method": f"{spec['method']}, {manifest.steps} steps, seed {manifest.seed}",
        "settings": f"`{json.dumps(spec['settings'], sort_keys=True)}`",
        "judgments": f"snapshot {manifest.snapshot_digest}",
        "continues": manifest.parent_digest or "the base model",
        "code": f"Rondo {manifest.commit or 'of unknown version'}",
        "libraries": ", ".join(f"{name} {version}" for name, version in sorted(manifest.versions.items())),
        **_left_out(manifest),
    }
    figures = [f"| {name} | {value:.4g} |" for name, value in sorted(manifest.metrics.items())]
    return _CARD.format(
        library="transformers" if merged else "peft",
        base=manifest.base_model,
        kind="reward-model" if manifest.kind == "reward" else "text-generation",
        name=manifest.name,
        what=f"{what} with merged weights" if merged else f"LoRA adapter that makes a {what}",
        facts="\n".join(f"| {name} | {value} |" for name, value in facts.items()),
        held_out="\n".join(["## On held-out prompts", "", "| | |", "|---|---|", *figures, "", ""])
        if figures
        else "",
        scores=_SCORES.format(heads=", ".join(f"`{name}`" for name in manifest.heads))
        if manifest.heads
        else "",
    )


def _left_out(manifest: Manifest) -> dict[str, str]:
    listed = "; ".join(f"{count} × {reason}" for reason, count in sorted(manifest.dropped_counts.items()))
    return {"left out of training": listed} if listed else {}


def _checked(checkpoint: Path, base: Path, *, merged: bool) -> Manifest:
    manifest = read_manifest(checkpoint, verify=True)
    whole = holds_all_weights(checkpoint)
    if whole and not (merged and SCORE in manifest.heads):
        raise ContractError(
            f"{checkpoint}: nothing is to be exported: all weights were trained: the folder is a model that "
            "transformers loads as it is"
        )
    if not whole and ADAPTER_FILE not in manifest.files:
        raise ContractError(
            f"{checkpoint}: checkpoint {manifest.name!r} holds no adapter; it is {manifest.base_model} itself"
        )
    if not (base / "config.json").is_file():
        raise ContractError(f"{base}: no model is here (config.json is missing); name the base's folder")
    digest = base_digest(base)
    if digest != manifest.base_digest:
        raise ContractError(
            f"{base}: its digest is {digest[:12]}; checkpoint {manifest.name!r} was trained on "
            f"{manifest.base_model} ({manifest.base_digest[:12]}); name that base"
        )
    return manifest


def _merged(checkpoint: Path, base: Path, dtype: str) -> Any:
    """Return the base with the adapter added to its weights, in float32 and then kept as the base is; or the
    transformer that the checkpoint is."""
    whole = holds_all_weights(checkpoint)
    try:
        model = read_model(checkpoint if whole else base, dtype="auto")
        stored_dtype = model.dtype if dtype == "auto" else _DTYPES[dtype]
        if not whole:
            model = PeftModel.from_pretrained(model.float(), checkpoint).merge_and_unload(safe_merge=True)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ContractError(f"{checkpoint}: cannot be merged into {base} ({error})") from error
    return model.to(stored_dtype)


def _write_merged(model: Any, heads: Mapping[str, Tensor], tokenizer: Any, out: Path) -> str:
    """Write a merged model, a reward model as a sequence classifier where it can be one; return a remark for
    the model card."""
    classifier = make_classifier(model, heads, tokenizer)
    if classifier is not None:
        classifier.save_pretrained(out)
        end = tokenizer.convert_ids_to_tokens(turn_end_id(tokenizer))
        return _CLASSIFIER.format(end=f"`{end}`", pad=f"`{tokenizer.pad_token}`")
    model.save_pretrained(out)
    add_turn_end(out, tokenizer)
    return _NO_CLASSIFIER if SCORE in heads else ""


def main() -> int:
    """Parse the command line and export; 0 when the folder is there, 1 with the reason when not."""
    parser = argparse.ArgumentParser(
        prog="python -m training.rlhf.export", description="Write a checkpoint for use without Rondo."
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="folder of the checkpoint")
    parser.add_argument("--base", type=Path, required=True, metavar="FOLDER", help="its base model")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder to be made")
    parser.add_argument("--merged", action="store_true", help="add the adapter to the base's weights")
    parser.add_argument(
        "--dtype",
        choices=["auto", *_DTYPES],
        default="auto",
        help="precision of merged weights; auto is the base's (default: %(default)s)",
    )
    parser.add_argument("--card", type=Path, metavar="FILE", help="a model card to put in, in Markdown")
    arguments = parser.parse_args()
    transformers_logging.disable_progress_bar()
    try:
        export_checkpoint(
            arguments.checkpoint,
            base=arguments.base,
            out=arguments.out,
            merged=arguments.merged,
            dtype=arguments.dtype,
            card=arguments.card,
        )
    except (ContractError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{arguments.out}: written\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
