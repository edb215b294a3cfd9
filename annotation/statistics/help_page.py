"""The report of a project's suggestions as its page writes it."""

from dataclasses import dataclass

from django.utils.formats import number_format
from django.utils.translation import gettext as _

from annotation.agreement.estimate import Estimate
from annotation.statistics.help import Effect, HelpReport
from annotation.statistics.labels import REASONS
from annotation.statistics.page import Number, Row, written
from annotation.statistics.plots import SHARE


@dataclass(frozen=True, kw_only=True, slots=True)
class Warned:
    """An accuracy that help lowers, with its difference."""

    name: str
    difference: Number


class HelpPage:
    """One report with everything its template writes."""

    def __init__(self, report: HelpReport) -> None:
        self.report = report

    @property
    def decisions(self) -> list[Row]:
        """Shares of decisions on suggestions."""
        report = self.report
        return [
            _share(
                _("Planted errors rejected"),
                _("Of the suggestions that were wrong on purpose."),
                report.planted_rejected,
            ),
            _share(
                _("Suggestions accepted"),
                _("Of the suggestions as the model made them, without a change."),
                report.accepted,
            ),
            _share(
                _("Accepted unread"),
                _("Of the accepted ones: decided faster than the bound in the settings."),
                report.accepted_unread,
            ),
        ]

    @property
    def effects(self) -> list[Row]:
        """Each quantity with help, without it, and the difference."""
        report = self.report
        return [
            _effect(
                _("Time per comparison"),
                _("Active time over both passes; only the first pass without help."),
                report.seconds,
                is_share=False,
            ),
            _effect(
                _("Agreement with others"),
                _("Share of pairs decided as others decided them in their first passes."),
                report.agreement,
            ),
            _effect(_("Gold accuracy"), _("Share of gold items answered right."), report.gold),
        ]

    @property
    def changes(self) -> list[Row]:
        """Changes from the first to the final pass, on the same comparisons."""
        return [
            Row(
                name=name,
                note=_("Final pass minus first pass, of finished work with help."),
                numbers=(_number(estimate, is_difference=True),),
            )
            for name, estimate in (
                (_("Agreement with others"), self.report.agreement_change),
                (_("Gold accuracy"), self.report.gold_change),
            )
        ]

    @property
    def warnings(self) -> list[Warned]:
        """Accuracies that help lowers: the whole interval of the difference lies below zero."""
        named = {
            "agreement": (_("Agreement with others"), self.report.agreement),
            "gold": (_("Gold accuracy"), self.report.gold),
        }
        return [
            Warned(name=named[key][0], difference=_number(named[key][1].difference, is_difference=True))
            for key in self.report.lowers
        ]


def _share(name: str, note: str, estimate: Estimate) -> Row:
    return Row(name=name, note=note, numbers=(_number(estimate),))


def _effect(name: str, note: str, effect: Effect, *, is_share: bool = True) -> Row:
    return Row(
        name=name,
        note=note,
        numbers=(
            _number(effect.helped, is_share=is_share),
            _number(effect.control, is_share=is_share),
            _number(effect.difference, is_share=is_share, is_difference=True),
        ),
    )


def _number(estimate: Estimate, *, is_share: bool = True, is_difference: bool = False) -> Number:
    def text(value: float | None) -> str:
        if value is None:
            return ""
        sign = "+" if is_difference and value > 0 else ""
        if not is_share:
            return sign + _("%(seconds)s s") % {"seconds": number_format(round(value, 1), 1)}
        return sign + written(value, share=True)

    return Number(
        value=text(estimate.value),
        interval=""
        if estimate.low is None
        else _("%(low)s to %(high)s") % {"low": text(estimate.low), "high": text(estimate.high)},
        items=estimate.items,
        reason="" if estimate.missing is None else str(REASONS[estimate.missing]),
        mark=SHARE.interval(estimate.value, estimate.low, estimate.high)
        if is_share and not is_difference
        else None,
        link="",
    )
