"""vLLM's generation on the same prompts. Runs in its environment, without Rondo. Prints one line of JSON."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import vllm


def main() -> None:
    """Generate twice; the second time counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--generated", type=int, required=True)
    parser.add_argument("--width", type=int, required=True, help="tokens of prompt and completion")
    options = parser.parse_args()
    ids = json.loads(Path(options.base, "work.json").read_text())["generation"]
    engine = vllm.LLM(
        model=options.base,
        dtype=options.dtype,
        max_model_len=options.width,
        max_num_seqs=len(ids),
        # The second time would read no prompt.
        enable_prefix_caching=False,
        seed=0,
    )
    parameters = vllm.SamplingParams(temperature=1.0, max_tokens=options.generated, ignore_eos=True)
    prompts = [{"prompt_token_ids": row} for row in ids]
    engine.generate(prompts, parameters, use_tqdm=False)
    begun = time.perf_counter()
    outputs = engine.generate(prompts, parameters, use_tqdm=False)
    seconds = time.perf_counter() - begun
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    print(json.dumps({"seconds": seconds, "tokens": tokens, "version": vllm.__version__}))


if __name__ == "__main__":
    main()
