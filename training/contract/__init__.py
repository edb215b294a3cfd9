"""The contract of files between the web application and the trainer.

    snapshot folder   snapshot.json, judgments.jsonl,
                      prompts.jsonl                             web → trainer
    run folder        spec.json, cancel, guard/verdict-N.json   web → trainer
                      status.json, metrics.jsonl,
                      evaluation.json, samples.jsonl,
                      guard/question-N.json,
                      log.txt, dropped.jsonl, machine.jsonl,
                      state/, checkpoint/                       trainer → web
    checkpoint folder manifest.json, adapter, heads             trainer → web, model server

Dataclasses on the standard library and pydantic, so that a web process reads them without
torch and a trainer reads them without Django. Every reader refuses what it does not
understand and names the row and the field. A trainer from outside imports the names of this package; Rondo
imports each from the module that defines it.
"""

from annotation.record.base import ContractError
from training.contract.checkpoint import Manifest, base_digest, read_manifest, write_manifest
from training.contract.files import sha256_of_file
from training.contract.run import (
    CANCEL_FILE,
    CHECKPOINT_FOLDER,
    EXIT_FAILED,
    EXIT_FINISHED,
    EXIT_STOPPED,
    LOG_FILE,
    METRICS_FILE,
    RunStatus,
    read_metrics,
    read_spec,
    write_status,
)
from training.contract.snapshot import read_snapshot
