"""Base models from GGUF files: dequantised once into a folder in transformers' format.

    python -m training.rlhf.gguf_files FILE INTO

Configuration, vocabulary and chat template come from the file's metadata. A key of the metadata that nobody
reads here would change what the model computes: such a file is refused with the key's name.
"""

from training.rlhf.gguf_files.conversion import TOKENIZER_FILES, convert

__all__ = ["TOKENIZER_FILES", "convert"]
