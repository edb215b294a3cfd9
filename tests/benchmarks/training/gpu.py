"""How fast a GPU trains a Llama-shaped base of a billion random weights: tokens/s, MFU, peak memory.

    python -m tests.benchmarks.training.gpu --tokenizer var/models/SmolLM2-135M-Instruct

Judgments are drawn at random: a prompt of 512 tokens, four answers of 128. Model FLOPs utilisation counts
what LoRA on a frozen base needs, 2 FLOPs forward and 2 backward per weight and token, plus attention and,
for a policy, the LM head at the answers' tokens; recomputation and LoRA itself are not counted. `--peak`
is the device's peak in TFLOP/s for the precision, dense: 989 for an H100 or H200 in bfloat16, 312 for an
A100. `--layers 2 --hidden 256 --device cpu --dtype float32` tries the script out on any machine.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from training.contract import Method, RunSpec, settings_from_json
from training.rlhf.loop.evaluation import Account
from training.rlhf.loop.method import TrainingMethod
from training.rlhf.methods.preference import DirectPreference
from training.rlhf.methods.reward import RewardModelling
from training.rlhf.model.backbone import Backbone
from training.rlhf.runtime.processes import Processes
from training.rlhf.tokens.encoding import Answered
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import Batch, pack, passes

VOCABULARY = 49_152


def main() -> None:
    """Measure both methods and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--tokenizer", type=Path, required=True, help="folder of any model with a chat template"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--answer", type=int, default=128)
    parser.add_argument("--judgments", type=int, default=64, help="per optimiser step")
    parser.add_argument("--micro-batch-tokens", type=int, default=16_384)
    parser.add_argument("--checkpointing", action="store_true", help="compute activations again")
    parser.add_argument("--steps", type=int, default=5, help="after one that warms up and compiles")
    parser.add_argument("--peak", type=float, default=989.0, help="TFLOP/s")
    options = parser.parse_args()
    print("| method | tokens/s | MFU | peak memory, GB | seconds a step |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        base = random_base(Path(scratch, "base"), options)
        for method in ("reward", "preference"):
            measure(base, method, options)


def random_base(folder: Path, options: argparse.Namespace) -> Path:
    """A Llama of random weights; with the default sizes 1.0 billion in its blocks, as in Llama-3.2-1B."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=options.hidden,
        intermediate_size=4 * options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=options.hidden // 64,
        num_key_value_heads=max(1, options.hidden // 256),
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(getattr(torch, options.dtype)).save_pretrained(folder)
    for path in options.tokenizer.iterdir():
        if path.name.startswith(("tokenizer", "chat_template", "special_tokens", "vocab", "merges")):
            shutil.copy(path, folder)
    return folder


def measure(base: Path, name: Method, options: argparse.Namespace) -> None:
    """Train some steps with one method and print its row."""
    device = torch.device(options.device)
    backbone = Backbone.load(base, device=device, dtype=getattr(torch, options.dtype))
    settings = settings_from_json(name, {})
    spec = RunSpec(method=name, base_model=str(base), snapshot="", snapshot_digest="", settings=settings)
    make = RewardModelling if name == "reward" else DirectPreference
    method: TrainingMethod = make(backbone, spec, settings)  # type: ignore[arg-type]
    backbone.checkpoint_activations(options.checkpointing)
    examples = random_examples(options)
    optimiser = torch.optim.AdamW(list(backbone.parameters(method.adapter).values()), lr=1e-4)
    tokens, flops = step(backbone, method, examples, optimiser, options)
    synchronise(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    for _ in range(options.steps):
        step(backbone, method, examples, optimiser, options)
    synchronise(device)
    seconds = (time.perf_counter() - begun) / options.steps
    memory = torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else float("nan")
    share = flops / seconds / (options.peak * 1e12)
    print(f"| {name} | {tokens / seconds:.0f} | {share:.1%} | {memory:.1f} | {seconds:.2f} |", flush=True)


def step(
    backbone: Backbone,
    method: TrainingMethod,
    examples: list[Example],
    optimiser: torch.optim.Optimizer,
    options: argparse.Namespace,
) -> tuple[int, float]:
    """One optimiser step as the loop takes it; its tokens and the FLOPs that they need."""
    optimiser.zero_grad(set_to_none=True)
    method.prepare(examples, Processes())
    account = Account(method, examples)
    tokens, flops = 0, 0.0
    for group in passes(examples, tokens=options.micro_batch_tokens):
        batch = pack(group, device=backbone.device)
        loss = account.add(method.outcome(batch, group, dropout=True), batch.tokens, group)
        if loss is not None:
            loss.backward()
        tokens += batch.tokens
        flops += needed_flops(backbone, batch, policy=method.kind == "policy")
    account.total(Processes(), held_out=False)
    optimiser.step()
    return tokens, flops


def needed_flops(backbone: Backbone, batch: Batch, *, policy: bool) -> float:
    """FLOPs of a forward and a backward pass that needs no gradient of the base."""
    config = backbone.config
    hidden, width = config.hidden_size, config.hidden_size // config.num_attention_heads
    attention = 2 * hidden * hidden + 2 * hidden * width * config.num_key_value_heads
    block = attention + 3 * hidden * config.intermediate_size
    head = config.vocab_size * hidden * len(batch.targets) if policy else 0
    # Two products, of queries with keys and of weights with values, over what each token sees; their
    # gradients take twice as much.
    seen = float((batch.position_ids + 1).sum())
    mixing = 2 * 2 * seen * hidden * config.num_hidden_layers
    return float(4 * (block * config.num_hidden_layers * batch.tokens + head) + 3 * mixing)


def random_examples(options: argparse.Namespace) -> list[Example]:
    """Rankings of four answers."""
    generator = torch.Generator().manual_seed(1)

    def draw(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(10, VOCABULARY, (count,), generator=generator).tolist())

    found = []
    for index in range(options.judgments):
        prompt = draw(options.prompt)
        answers = tuple(Answered(prompt + draw(options.answer), options.prompt) for _ in range(4))
        found.append(Example(str(index), answers, (1, 2, 3, 4)))
    return found


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
