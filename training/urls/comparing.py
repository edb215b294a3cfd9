"""Side by side, arenas, the leaderboard."""

from django.urls import URLPattern, path

from training.views import arenas as arena
from training.views import leaderboard, prompt_sets
from training.views import side_by_side as compare

_PROJECT = "projects/<slug:slug>/"

patterns: list[URLPattern] = [
    path("compare/", compare.compare, name="compare"),
    path("compare/answer/", compare.compare_answer, name="compare-answer"),
    path("compare/prompts/", compare.compare_prompts, name="compare-prompts"),
    path("compare/<str:slug>/", compare.compare_shown, name="compare-shown"),
    path("compare/<str:slug>/write/", compare.compare_write, name="compare-write"),
    path("compare/<str:slug>/vote/", compare.compare_vote, name="compare-vote"),
    path("compare/<str:slug>/reveal/", compare.compare_reveal, name="compare-reveal"),
    path("compare/<str:slug>/again/", compare.compare_again, name="compare-again"),
    path("compare/<str:slug>/next/", compare.compare_next, name="compare-next"),
    path("compare/<str:slug>/continue/", compare.compare_continue, name="compare-continue"),
    path(f"{_PROJECT}prompt-sets/", prompt_sets.prompt_sets, name="prompt-sets"),
    path(f"{_PROJECT}prompt-sets/create/", prompt_sets.create, name="prompt-set-create"),
    path(f"{_PROJECT}prompt-sets/<int:pk>/", prompt_sets.prompt_set, name="prompt-set"),
    path(f"{_PROJECT}prompt-sets/<int:pk>/change/", prompt_sets.change, name="prompt-set-change"),
    path(f"{_PROJECT}prompt-sets/<int:pk>/delete/", prompt_sets.delete, name="prompt-set-delete"),
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
