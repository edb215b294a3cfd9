"""Reward models on public test sets: measured by a process of the trainer, kept with the checkpoint."""

import json
import os
import sys
import tempfile
from pathlib import Path

from django.conf import settings
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from training.choices import CheckpointKind
from training.files.shared import both_have, fetched
from training.models import Checkpoint, YardstickResult
from training.services.registry.processes import refuse_failed, run_process
from training.services.runs.launcher import trainer_environment


def measure_yardstick(
    *, checkpoint: Checkpoint, name: str, path: Path, most: int | None = None
) -> YardstickResult:
    """Measure a reward model on a file of a test set and keep the figures.

    name: of the test set, as `python -m training.rlhf.yardsticks --set` takes it. Raises `Refusal` for a
    checkpoint that is no reward model or has no files, and with the command's words for a file it refuses.
    """
    if checkpoint.kind != CheckpointKind.REWARD:
        raise Refusal("not_a_reward_model", _("%(name)s is no reward model."), name=checkpoint)
    if checkpoint.files_deleted_at is not None:
        raise Refusal("files_deleted", _("The files of %(name)s were deleted."), name=checkpoint)
    base = both_have(Path(settings.RONDO_MODELS) / checkpoint.base_model)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        command = [
            *(sys.executable, "-m", "training.rlhf.yardsticks"),
            *(str(fetched(checkpoint.path)), str(path.resolve())),
            *("--base", str(base), "--set", name, "--out", str(out)),
            *(() if most is None else ("--most", str(most))),
        ]
        ended = run_process(command, environment=trainer_environment(os.environ), beat=lambda: None)
        refuse_failed(ended.code, ended.last_line)
        result = json.loads(out.read_text(encoding="utf-8"))
    yardstick_result, _created = YardstickResult.objects.update_or_create(
        checkpoint=checkpoint,
        name=name,
        file_sha256=result["file_sha256"],
        items=result["items"],
        defaults={"result": result},
    )
    return yardstick_result
