"""`manage.py course --list`, `manage.py course --check [SLUG …] [--seeds N] [--short]`"""

import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from training.contract.course import BY_SLUG, LESSONS, Lesson, mean_interval
from training.services.course import train


class Command(BaseCommand):
    help = (
        "List the lessons, or check them: each is trained on this machine with every seed, and must keep its "
        "claim; broken, it must not. With five seeds or more the figure that its page states must lie in the "
        "interval that they give. Ends with 1 where a lesson fails."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument("--list", action="store_true", help="names and titles")
        what.add_argument("--check", nargs="*", metavar="SLUG", help="these lessons; without names all")
        parser.add_argument("--seeds", type=int, default=1, metavar="N", help="seeds 0 to N − 1 (1)")
        parser.add_argument(
            "--short", action="store_true", help="smallest form: shows that lessons run, judges no claim"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["list"]:
            for lesson in LESSONS:
                self.stdout.write(f"{lesson.slug:24}{_(lesson.title)}")
            return
        if unknown := sorted(set(options["check"]) - set(BY_SLUG)):
            raise CommandError(
                _("There is no lesson %(names)s. `manage.py course --list` lists all.")
                % {"names": ", ".join(unknown)}
            )
        if options["seeds"] < 1:
            raise CommandError(_("--seeds: at least 1."))
        lessons = [lesson for lesson in LESSONS if not options["check"] or lesson.slug in options["check"]]
        failed = [
            lesson.slug
            for lesson in lessons
            if not self._check(lesson, seeds=options["seeds"], short=options["short"])
        ]
        if failed:
            raise CommandError(_("Failed: %(names)s") % {"names": ", ".join(failed)})

    def _check(self, lesson: Lesson, *, seeds: int, short: bool) -> bool:
        began, faults, values = time.monotonic(), [], []
        claim = lesson.claim
        for seed in range(seeds):
            for broken in (False, True):
                name = f"seed {seed}, broken" if broken else f"seed {seed}"
                with tempfile.TemporaryDirectory() as folder:
                    try:
                        result = train(
                            lesson, seed=seed, broken=broken, short=short, out=Path(folder) / "lesson.jsonl"
                        )
                    except Refusal as refusal:
                        faults.append(f"{name}: {refusal.message}")
                        continue
                value = result.figures[claim.figure]
                if not broken:
                    values.append(value)
                if not short and claim.holds(result.figures) == broken:
                    faults.append(f"{name}: {claim.figure} = {value:.4g}")
        summary = ""
        if len(values) >= 2:
            mean, low, high = mean_interval(values)
            summary = f"  {claim.figure} {mean:.4g} ({low:.4g} to {high:.4g})"
            rounding = 1e-3 * max(abs(mean), 1.0)
            if len(values) >= 5 and not short and not low - rounding <= claim.stated.mean <= high + rounding:
                faults.append(f"the page states {claim.stated.mean:.4g}")
        verdict = "failed" if faults else "ran" if short else "passed"
        self.stdout.write(f"{lesson.slug:24}{time.monotonic() - began:7.1f} s  {verdict}{summary}")
        for fault in faults:
            self.stdout.write(f"    {fault}")
        self.stdout.flush()
        return not faults
