"""`manage.py agreement [PROJECT] [--round N] [--json]`"""

import json
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand
from django.core.serializers.json import DjangoJSONEncoder

from annotation.agreement.records import Selection
from annotation.forms.statistics import people_of
from annotation.management.projects import project_named
from annotation.statistics.page import Number, ReportPage, Row


class Command(BaseCommand):
    help = (
        "Print how far the annotators of a project agree, with each other, with themselves and with what is "
        "known, and how far each can be relied on; with 95 % intervals."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "project", nargs="?", metavar="PROJECT", help="slug; may be left out when there is one project"
        )
        parser.add_argument("--round", type=int, metavar="N", help="only this round")
        parser.add_argument("--json", action="store_true", help="every figure, for programs")

    def handle(self, *args: Any, **options: Any) -> None:
        # Here and not above: Django loads every command to list them, and this one brings NumPy.
        from annotation.statistics.compute import compute_report

        project = project_named(options["project"])
        report = compute_report(project, Selection(round_number=options["round"]))
        if options["json"]:
            self.stdout.write(json.dumps(asdict(report), cls=DjangoJSONEncoder, indent=2))
            return
        page = ReportPage(project, report, people_of(project))
        self.stdout.write(f"{project}: {report.judgments} judgments of {report.comparisons} comparisons\n")
        for title, rows in (
            ("Agreement", page.agreement),
            ("Span agreement", page.spans),
            ("Agreement by round: percent, Fleiss’ κ", page.rounds),
            ("Agreement two by two: percent, Cohen’s κ, τ-b", page.pairs_of_people),
            ("Position", page.position),
            ("Consistency", page.consistency),
        ):
            self._write(title, rows)
        self.stdout.write("\nReliability (Crowd-BT)")
        for person in page.people:
            self.stdout.write(f"  {person.name:<44} {_formatted(person.reliability)}")

    def _write(self, title: str, rows: list[Row]) -> None:
        if rows:
            self.stdout.write(f"\n{title}")
        for row in rows:
            self.stdout.write(f"  {row.name:<44} " + "   ".join(_formatted(number) for number in row.numbers))


def _formatted(number: Number) -> str:
    if number.reason:
        return number.reason
    return f"{number.value} ({number.interval})" if number.interval else number.value
