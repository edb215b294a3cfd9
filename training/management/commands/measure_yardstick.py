"""`manage.py measure_yardstick CHECKPOINT SET FILE [--most N]`"""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from training.models import Checkpoint
from training.services.evaluation.evaluating import measure_yardstick


class Command(BaseCommand):
    help = (
        "Measure a reward model on a public test set that was downloaded before: reward-bench-2, rm-bench, "
        "ppe-preference, alpaca-pairs, llmbar or judgebench. Its page shows the figures."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("checkpoint", metavar="CHECKPOINT", help="name of a reward model")
        parser.add_argument("set", metavar="SET", help="which test set it is")
        parser.add_argument("file", metavar="FILE", type=Path, help=".json, .jsonl, .jsonl.gz or .parquet")
        parser.add_argument("--most", type=int, help="a fixed sample of so many items")

    def handle(self, *args: Any, **options: Any) -> None:
        checkpoint = Checkpoint.objects.filter(name=options["checkpoint"]).first()
        if checkpoint is None:
            raise CommandError(
                _("There is no checkpoint %(name)r. The Checkpoints page lists all names.")
                % {"name": options["checkpoint"]}
            )
        try:
            measurement = measure_yardstick(
                checkpoint=checkpoint, name=options["set"], path=options["file"], most=options["most"]
            )
        except Refusal as refusal:
            raise CommandError(refusal.message) from refusal
        title, figure = measurement.result["title"], measurement.result["figures"]["all"]["value"]
        self.stdout.write(f"{title}: {figure:.3f} of {measurement.items} items, on the page of {checkpoint}")
