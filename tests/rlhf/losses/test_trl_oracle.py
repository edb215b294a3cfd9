"""TRL 1.16 as oracle: the same weights, the same tokens, the same loss and the same gradients.

The rows' token ids are ours, given to TRL's own collators: what is compared is the mathematics. Where
TRL computes something else, the test says what and why, and compares what can be.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rlhf.methods.policies import CPU, examples_of, method_of, step
from tests.rlhf.model.test_backbone import disturb, save
from tests.rlhf.runs import row
from tests.tiny import START
from training.contract.methods.common import LoraSettings
from training.contract.methods.policy import KtoSettings, PreferenceSettings, SftSettings
from training.contract.methods.reward import RewardSettings
from training.rlhf.loop.method import TrainingMethod
from training.rlhf.model.backbone import Backbone
from training.rlhf.tokens.encoding import EncodedAnswer
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import pack

LORA = LoraSettings(rank=4)
PAIRS = [
    row("a", ["the sun rises in the east", "no no"], [1, 2], prompt="Where does the sun rise?", strength=3),
    row("b", ["why", "because it sets in the west, and so on"], [2, 1], prompt="Why?", strength=1),
    row("c", ["a policy", "a reward model gives one number"], [1, 2], prompt="What is it? " * 3, strength=2),
]
"""Three pairs whose answers differ in length, the longer one not always the better."""

Gradients = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """TRL and transformers warn of names that one of them is about to change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# ── Ours ──────────────────────────────────────────────────────────────────────────────


def ours(backbone: Backbone, method: TrainingMethod, examples: list[Example]) -> tuple[float, Gradients]:
    """Loss and gradients of one step over the examples, as the loop computes them: in several passes."""
    loss = step(method, examples, tokens=100)
    return loss, take_gradients(backbone.parameters(method.adapter).items())


def take_gradients(parameters: Any) -> Gradients:
    """Gradients by the names that both sides share, and forgotten where they were."""
    gradients = {}
    for name, parameter in parameters:
        if parameter.grad is not None:
            gradients[shared_name(name)] = parameter.grad.clone()
            parameter.grad = None
    return gradients


def shared_name(name: str) -> str:
    """Return the name of a parameter that both sides share."""
    if "score" in name:
        return "score"
    return name.removeprefix("base_model.model.").replace(".adapter0.", ".default.")


def same(first: tuple[float, Gradients], other: tuple[float, Gradients]) -> None:
    assert first[0] == pytest.approx(other[0], abs=1e-5)
    assert first[1].keys() == other[1].keys()
    assert len(first[1]) > 40
    difference = sum(((first[1][key] - other[1][key]) ** 2).sum() for key in first[1]) ** 0.5
    size = sum((value**2).sum() for value in first[1].values()) ** 0.5
    assert size > 1e-3
    assert difference / size < 1e-5


# ── TRL's ─────────────────────────────────────────────────────────────────────────────


class Peer:
    """One of TRL's trainers with our adapter's weights. Nothing is trained: its `compute_loss` is called."""

    def __init__(
        self,
        kind: str,
        backbone: Backbone,
        adapter: str,
        tmp: Path,
        *,
        parent: Path | None = None,
        **config: Any,
    ) -> None:
        import trl
        from datasets import Dataset
        from transformers import AutoModelForCausalLM, AutoTokenizer

        more: dict[str, Any] = {}
        if kind in ("DPO", "KTO") and parent is None:
            more["ref_model"] = AutoModelForCausalLM.from_pretrained(backbone.folder, dtype=torch.float32)
        if kind == "KTO":
            config |= {"train_sampling_strategy": "sequential", "per_device_train_batch_size": 2}
        args = getattr(trl, f"{kind}Config")(
            output_dir=str(tmp / "output"),
            use_cpu=True,
            bf16=False,
            report_to="none",
            disable_tqdm=True,
            **{"gradient_checkpointing": False, **config},
        )
        self.trainer = getattr(trl, f"{kind}Trainer")(
            model=peft_model(kind, backbone, parent or save(backbone, adapter, tmp / "adapter")),
            args=args,
            train_dataset=Dataset.from_list(_ROWS_OF_TRL[kind]),
            processing_class=AutoTokenizer.from_pretrained(backbone.folder),
            **more,
        )
        # TRL has copied a parent by now, to be its reference; from here the policy is ours.
        weights = {shared_name(name): value for name, value in backbone.parameters(adapter).items()}
        with torch.no_grad():
            for name, parameter in self.trainer.model.named_parameters():
                if parameter.requires_grad:
                    parameter.copy_(weights[shared_name(name)])

    def loss(self, items: Sequence[dict[str, Any]], **more: Any) -> tuple[float, Gradients]:
        """Loss and gradients of one batch."""
        inputs = self.trainer.data_collator(list(items))
        loss = self.trainer.compute_loss(self.trainer.model, inputs, **more)
        loss.backward()
        return loss.item(), take_gradients(self.trainer.model.named_parameters())

    def mean_loss(self, items: Sequence[dict[str, Any]]) -> tuple[float, Gradients]:
        """The mean of the losses of batches of one."""
        return mixed([(1 / len(items), self.loss([item])) for item in items])


def peft_model(kind: str, backbone: Backbone, folder: Path) -> Any:
    """A checkpoint of ours as plain peft loads it, on the model that a trainer of TRL's wants."""
    from peft import PeftConfig, PeftModel
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    shape = PeftConfig.from_pretrained(folder)
    plain: Any
    if kind == "Reward":
        plain = AutoModelForSequenceClassification.from_pretrained(
            backbone.folder, num_labels=1, dtype=torch.float32
        )
        shape.task_type = None
    else:
        plain = AutoModelForCausalLM.from_pretrained(backbone.folder, dtype=torch.float32)
    model = PeftModel.from_pretrained(plain, folder, config=shape, is_trainable=True)
    if kind == "Reward":
        plain.score.weight.requires_grad_(True)
    return model


_SAID = [{"role": "user", "content": "Why?"}]
_ROWS_OF_TRL: dict[str, list[dict[str, Any]]] = {
    kind: [
        {
            "prompt": _SAID,
            **{key: [{"role": "assistant", "content": f"{key} answer"}] for key in keys},
            **({"label": True} if kind == "KTO" else {}),
        }
    ]
    * 2
    for kind, keys in {
        "DPO": ("chosen", "rejected"),
        "Reward": ("chosen", "rejected"),
        "KTO": ("completion",),
        "SFT": ("completion",),
    }.items()
}


def mixed(parts: Sequence[tuple[float, tuple[float, Gradients]]]) -> tuple[float, Gradients]:
    """A weighted sum of losses and of their gradients."""
    loss = sum(weight * part[0] for weight, part in parts)
    names = parts[0][1][1]
    return loss, {
        name: torch.stack([weight * part[1][name] for weight, part in parts]).sum(0) for name in names
    }


def pairs_of_trl(examples: Sequence[Example]) -> list[dict[str, Any]]:
    items = []
    for example in examples:
        ((winner, loser),) = example.pairs
        chosen, rejected = example.answers[winner], example.answers[loser]
        items.append(
            {
                "prompt_ids": list(chosen.ids[: chosen.answer_start]),
                "chosen_ids": list(chosen.ids[chosen.answer_start :]),
                "rejected_ids": list(rejected.ids[rejected.answer_start :]),
            }
        )
    return items


# ── DPO ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("chosen", "config"),
    [
        ({}, {"loss_type": ["sigmoid"]}),
        ({"loss": "hinge"}, {"loss_type": ["hinge"]}),
        ({"loss": "robust", "label_smoothing": 0.1}, {"loss_type": ["robust"], "label_smoothing": 0.1}),
        ({"length_normalised": True, "beta": 2.0}, {"loss_type": ["sigmoid_norm"], "beta": 2.0}),
        # TRL divides the log-ratios of IPO by the answers' lengths; equation 17 of Azar et al. 2023 does
        # not. Ours does where it is asked to.
        ({"loss": "ipo", "length_normalised": True}, {"loss_type": ["ipo"]}),
    ],
    ids=lambda value: str(value.get("loss_type", "")) if isinstance(value, dict) else "",
)
def test_dpo_and_its_kin_cost_what_trl_says(
    backbone: Backbone, tmp_path: Path, chosen: dict[str, Any], config: dict[str, Any]
) -> None:
    method = method_of(backbone, PreferenceSettings(lora=LORA, **chosen))
    peer = Peer("DPO", backbone, "policy", tmp_path, **{"beta": 0.1, **config})
    examples = examples_of(method, backbone, PAIRS)
    same(ours(backbone, method, examples), peer.loss(pairs_of_trl(examples)))


def test_ipo_on_whole_answers_is_trls_where_all_answers_have_one_length(
    backbone: Backbone, tmp_path: Path
) -> None:
    # With n = 4 tokens each TRL's (h/n − 1/(2β))² is (h − n/(2β))² / n²: ours at β/n, divided by n².
    answers = ((0, 1, 40, 50, 60, 70, 2), (0, 1, 40, 55, 65, 75, 2))
    examples = [Example("a", tuple(EncodedAnswer(ids, 3) for ids in answers), (2, 1))]
    method = method_of(backbone, PreferenceSettings(lora=LORA, loss="ipo", beta=0.1 / 4))
    peer = Peer("DPO", backbone, "policy", tmp_path, beta=0.1, loss_type=["ipo"])
    of_rondo = mixed([(1 / 4**2, ours(backbone, method, examples))])
    same(of_rondo, peer.loss(pairs_of_trl(examples)))


@pytest.mark.parametrize("loss", ["sigmoid", "hinge"])
def test_label_smoothing_mixes_the_stated_with_the_flipped_label(
    backbone: Backbone, tmp_path: Path, loss: Any
) -> None:
    # TRL 1.16 takes label_smoothing and, for these losses, leaves it out: only robust, exo and aot read it.
    # So its losses of both labels are mixed here, (1 − ε) : ε, as Mitchell 2023 has it.
    method = method_of(backbone, PreferenceSettings(lora=LORA, loss=loss, label_smoothing=0.2))
    peer = Peer("DPO", backbone, "policy", tmp_path, beta=0.1, loss_type=[loss], label_smoothing=0.2)
    examples = examples_of(method, backbone, PAIRS)
    stated = pairs_of_trl(examples)
    flipped = [
        {**item, "chosen_ids": item["rejected_ids"], "rejected_ids": item["chosen_ids"]} for item in stated
    ]
    expected = mixed([(0.8, peer.loss(stated)), (0.2, peer.loss(flipped))])
    assert peer.loss(stated)[0] != pytest.approx(expected[0], abs=1e-3)
    same(ours(backbone, method, examples), expected)


def test_the_term_of_imitation_is_trls_pair_by_pair(backbone: Backbone, tmp_path: Path) -> None:
    # TRL takes the mean of −log π over all chosen tokens of a forward pass, so that a long answer counts
    # more and the loss changes with the batch size per device. Ours is the mean over answers of the mean
    # over their tokens (Pang et al. 2024, equation 2): TRL's on batches of one.
    method = method_of(backbone, PreferenceSettings(lora=LORA, sft_weight=0.3))
    both = ["sigmoid", "sft"]
    peer = Peer("DPO", backbone, "policy", tmp_path, beta=0.1, loss_type=both, loss_weights=[1.0, 0.3])
    examples = examples_of(method, backbone, PAIRS)
    items = pairs_of_trl(examples)
    expected = peer.mean_loss(items)
    assert peer.loss(items)[0] != pytest.approx(expected[0], abs=1e-4)
    same(ours(backbone, method, examples), expected)


def test_a_run_that_continues_an_adapter_has_its_frozen_copy_as_reference_as_in_trl(
    backbone: Backbone, tmp_path: Path
) -> None:
    other = Backbone.load(backbone.folder, device="cpu", dtype=torch.float32)
    other.add_adapter("parent", LORA, seed=3)
    disturb(other, "parent", seed=4, scale=0.05)
    parent = save(other, "parent", tmp_path / "parent")
    method = method_of(backbone, PreferenceSettings(lora=LORA), parent=str(parent))
    examples = examples_of(method, backbone, PAIRS)
    peer = Peer("DPO", backbone, "policy", tmp_path, parent=parent, beta=0.1)
    of_rondo = ours(backbone, method, examples)
    assert of_rondo[0] != pytest.approx(math.log(2), abs=1e-3), "the policy has not moved from its parent"
    same(of_rondo, peer.loss(pairs_of_trl(examples)))


def test_trls_rows_are_ours_and_the_newline_after_the_turn(backbone: Backbone, tmp_path: Path) -> None:
    # A chat template of this kind ends a turn with its end token and a newline. TRL trains on both, though
    # sampling stops at the end token and no newline is ever sampled; our rows end with the end token.
    method = method_of(backbone, PreferenceSettings(lora=LORA))
    peer = Peer("DPO", backbone, "policy", tmp_path, beta=0.1)
    rows = [row("a", ["chosen answer", "rejected answer"], [1, 2], prompt="Why?")]
    (ours_,) = pairs_of_trl(examples_of(method, backbone, rows))
    newline = backbone.tokenizer("\n", add_special_tokens=False)["input_ids"]
    theirs = peer.trainer.train_dataset[0]
    assert theirs["prompt_ids"] == ours_["prompt_ids"]
    assert theirs["chosen_ids"] == ours_["chosen_ids"] + newline
    assert theirs["rejected_ids"] == ours_["rejected_ids"] + newline


# ── Reward models ─────────────────────────────────────────────────────────────────────


def rewarded(example: Example) -> dict[str, Any]:
    ((winner, loser),) = example.pairs
    return {"chosen_ids": example.answers[winner].ids, "rejected_ids": example.answers[loser].ids}


@pytest.mark.parametrize(("margin", "centring"), [(0.0, 0.0), (0.5, 0.0), (0.0, 0.1)])
def test_bradley_terry_costs_what_trl_says(
    backbone: Backbone, tmp_path: Path, margin: float, centring: float
) -> None:
    # TRL pads with a token that no row ends with: see the next test.
    settings = RewardSettings(lora=LORA, margin_per_strength=margin, centring=centring)
    method = method_of(backbone, settings)
    peer = Peer(
        "Reward",
        backbone,
        "reward",
        tmp_path,
        center_rewards_coefficient=centring or None,
        pad_token=START,
    )
    examples = examples_of(method, backbone, PAIRS)
    items = [
        {**rewarded(example), **({"margin": margin * example.strength} if margin else {})}
        for example in examples
    ]
    same(ours(backbone, method, examples), peer.loss(items))


def test_where_pad_is_the_end_token_trl_reads_the_reward_before_it(
    backbone: Backbone, tmp_path: Path
) -> None:
    # transformers looks for the last id that is not pad, and where pad is the end token, as in SmolLM2,
    # that is the token before it. Ours reads the end token: it is what says that the answer is over.
    method = method_of(backbone, RewardSettings(lora=LORA, centring=0.0))
    peer = Peer("Reward", backbone, "reward", tmp_path, center_rewards_coefficient=None)
    examples = examples_of(method, backbone, PAIRS)
    of_trl = peer.loss([rewarded(example) for example in examples])
    assert of_trl[0] != pytest.approx(ours(backbone, method, examples)[0], abs=1e-3)
    without_end = [
        dataclasses.replace(
            example, answers=tuple(answer._replace(ids=answer.ids[:-1]) for answer in example.answers)
        )
        for example in examples
    ]
    same(ours(backbone, method, without_end), of_trl)


# ── SFT ───────────────────────────────────────────────────────────────────────────────

WRITTEN = [
    row("a", ["?"], [0], verdict="not_asked", prompt="Where?", demonstration="in the east, where it rises"),
    row("b", ["?"], [0], verdict="not_asked", prompt="Why? " * 4, demonstration="because"),
    row("c", ["?"], [0], verdict="not_asked", prompt="Who?", demonstration="the sun, and no other"),
]


def imitated(example: Example) -> dict[str, Any]:
    (answer,) = example.answers
    ids = list(answer.ids)
    return {"input_ids": ids, "labels": [-100] * answer.answer_start + ids[answer.answer_start :]}


def test_sft_costs_what_trl_says_over_the_tokens_of_a_whole_step(backbone: Backbone, tmp_path: Path) -> None:
    method = method_of(backbone, SftSettings(lora=LORA))
    peer = Peer("SFT", backbone, "policy", tmp_path)
    examples = examples_of(method, backbone, WRITTEN)
    items = [imitated(example) for example in examples]
    tokens = sum(label != -100 for item in items for label in item["labels"])
    of_rondo = ours(backbone, method, examples)
    same(of_rondo, peer.loss(items))
    # Accumulated over two batches, as transformers' Trainer tells it the tokens of the step.
    halves = [peer.loss(some, num_items_in_batch=tokens) for some in (items[:1], items[1:])]
    same(of_rondo, mixed([(1.0, half) for half in halves]))


def test_sft_by_sequences_is_the_mean_of_trls_losses_of_one_answer_each(
    backbone: Backbone, tmp_path: Path
) -> None:
    method = method_of(backbone, SftSettings(lora=LORA, normalise="sequence"))
    peer = Peer("SFT", backbone, "policy", tmp_path)
    examples = examples_of(method, backbone, WRITTEN)
    same(ours(backbone, method, examples), peer.mean_loss([imitated(example) for example in examples]))


# ── KTO ───────────────────────────────────────────────────────────────────────────────


def thumb(name: str, prompt: str, text: str, value: int) -> Any:
    rating = {"completion": f"{name}.0", "criterion": "good", "scale": "thumbs", "value": value}
    return row(name, [text], [0], verdict="not_asked", prompt=prompt, ratings=[rating])


THUMBS = [
    thumb("a", "Where does it rise?", "in the east", 1),
    thumb("b", "Why?", "no no no, never", 0),
    thumb("c", "What is a policy? " * 2, "a policy gives an answer", 1),
]


@pytest.mark.parametrize(("good", "bad"), [(1.0, 1.0), (2.0, 0.5)])
def test_kto_costs_what_trl_says(backbone: Backbone, tmp_path: Path, good: float, bad: float) -> None:
    method = method_of(backbone, KtoSettings(lora=LORA, weight_desirable=good, weight_undesirable=bad))
    peer = Peer("KTO", backbone, "policy", tmp_path, beta=0.1, desirable_weight=good, undesirable_weight=bad)
    examples = examples_of(method, backbone, THUMBS)
    answers = [example.answers[0] for example in examples]
    completions = [list(answer.ids[answer.answer_start :]) for answer in answers]
    items = [
        {
            "prompt_ids": list(answer.ids[: answer.answer_start]),
            "completion_ids": completions[index],
            # The estimate of the KL: every answer under the next one's prompt, the last under the first's.
            "KL_completion_ids": completions[index - 1],
            "label": example.labels.ratings[0].value == 1,
        }
        for index, (answer, example) in enumerate(zip(answers, examples, strict=True))
    ]
    of_rondo = ours(backbone, method, examples)
    same(of_rondo, peer.loss(items))
    observed = method.outcome(pack(examples, device=CPU), examples, dropout=False).observed
    kl = peer.trainer._metrics["train"]["kl"][-1]
    assert kl > 0.1, "an estimate that is cut off at 0 compares nothing"
    assert observed["reference_kl"].tolist() == pytest.approx([kl] * 3, abs=1e-5)
