"""Counted votes, answers side by side and arenas in the admin: to be found and read."""

from django.contrib import admin

from annotation.admin.base import WrittenOnceAdmin
from training.models import (
    ArenaBallot,
    ArenaLink,
    ArenaPair,
    EloPoints,
    PromptSet,
    SideBySide,
    SideBySideAnswer,
    VoteCount,
    VoteLedger,
    VoteTotals,
)


@admin.register(VoteLedger)
class VoteLedgerAdmin(WrittenOnceAdmin):
    list_display = ["counted_up_to", "updated_at"]
    list_filter = ["updated_at"]
    search_fields = ["=counted_up_to"]


@admin.register(VoteTotals)
class VoteTotalsAdmin(WrittenOnceAdmin):
    list_display = ["project", "version", "stale"]
    list_filter = ["stale", "project"]
    list_select_related = ["project"]
    search_fields = ["project__name", "project__slug"]


@admin.register(VoteCount)
class VoteCountAdmin(WrittenOnceAdmin):
    list_display = [
        *("project", "slice", "value", "voters", "left", "right", "length_difference", "left_first"),
        *("wins", "losses", "ties", "both_bad"),
    ]
    list_filter = ["slice", "voters", "project"]
    list_select_related = ["project", "left", "right"]
    search_fields = ["left__name", "right__name", "value"]


@admin.register(EloPoints)
class EloPointsAdmin(WrittenOnceAdmin):
    list_display = ["project", "source", "points"]
    list_filter = ["project"]
    list_select_related = ["project", "source"]
    search_fields = ["source__name", "project__name"]


@admin.register(PromptSet)
class PromptSetAdmin(WrittenOnceAdmin):
    list_display = ["name", "project", "created_by", "created_at"]
    list_filter = ["project", "created_at"]
    list_select_related = ["project", "created_by"]
    search_fields = ["name", "project__name", "created_by__username"]
    exclude = ["prompts"]


@admin.register(SideBySide)
class SideBySideAdmin(WrittenOnceAdmin):
    list_display = ["__str__", "project", "blind", "created_by", "created_at"]
    list_filter = ["project", "blind", "created_at"]
    list_select_related = ["project", "created_by"]
    search_fields = ["slug", "messages", "created_by__username"]


@admin.register(SideBySideAnswer)
class SideBySideAnswerAdmin(WrittenOnceAdmin):
    list_display = ["__str__", "side_by_side", "position", "checkpoint", "score", "token_count"]
    list_filter = ["checkpoint", "written_at"]
    list_select_related = ["side_by_side", "checkpoint"]
    search_fields = ["text", "checkpoint__name", "side_by_side__slug"]


@admin.register(ArenaLink)
class ArenaLinkAdmin(WrittenOnceAdmin):
    list_display = ["name", "project", "for_guests", "votes", "expires_at", "closed_at", "created_by"]
    list_filter = ["for_guests", "project", "created_at"]
    list_select_related = ["project", "created_by"]
    search_fields = ["name", "slug", "created_by__username"]


@admin.register(ArenaPair)
class ArenaPairAdmin(WrittenOnceAdmin):
    list_display = ["arena", "comparison", "given", "given_left_first"]
    list_filter = ["arena"]
    list_select_related = ["arena", "comparison"]
    search_fields = ["=comparison__id", "arena__name"]


@admin.register(ArenaBallot)
class ArenaBallotAdmin(WrittenOnceAdmin):
    list_display = ["pair", "voter", "given_at", "judgment"]
    list_filter = ["pair__arena", "given_at"]
    list_select_related = ["pair__arena", "pair__comparison", "voter", "judgment"]
    search_fields = ["=id", "voter__username", "pair__arena__name"]
