"""Side by side, arenas, the leaderboard."""

from django.urls import URLPattern, path

from training.views import arena, compare, leaderboard

_PROJECT = "projects/<slug:slug>/"

patterns: list[URLPattern] = [
    path("compare/", compare.compare, name="compare"),
    path("compare/answer/", compare.compare_answer, name="compare-answer"),
    path("compare/<str:slug>/", compare.compare_shown, name="compare-shown"),
    path("compare/<str:slug>/write/", compare.compare_write, name="compare-write"),
    path("compare/<str:slug>/vote/", compare.compare_vote, name="compare-vote"),
    path("compare/<str:slug>/reveal/", compare.compare_reveal, name="compare-reveal"),
    path("compare/<str:slug>/continue/", compare.compare_continue, name="compare-continue"),
    path(f"{_PROJECT}leaderboard/", leaderboard.leaderboard, name="leaderboard"),
    path(f"{_PROJECT}leaderboard/groups/", leaderboard.leaderboard_groups, name="leaderboard-groups"),
    path(f"{_PROJECT}leaderboard/items/", leaderboard.leaderboard_items, name="leaderboard-items"),
    path(f"{_PROJECT}arenas/", arena.arenas, name="arenas"),
    path(f"{_PROJECT}arenas/create/", arena.arena_create, name="arena-create"),
    path(f"{_PROJECT}arenas/<int:pk>/close/", arena.arena_close, name="arena-close"),
    path("arena/<str:slug>/", arena.arena, name="arena"),
    path("arena/<str:slug>/begin/", arena.arena_begin, name="arena-begin"),
    path("arena/<str:slug>/<uuid:ballot_id>/", arena.arena_ballot, name="arena-ballot"),
]
