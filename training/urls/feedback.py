"""Pages of stored requests and feedback."""

from django.urls import URLPattern, path

from training.views import feedback

_FEEDBACK = "projects/<slug:slug>/feedback/"
_SETTINGS = f"{_FEEDBACK}settings/"

patterns: list[URLPattern] = [
    path(_FEEDBACK, feedback.feedback, name="feedback"),
    path(f"{_FEEDBACK}requests/<int:pk>/", feedback.feedback_request, name="feedback-request"),
    path(f"{_FEEDBACK}figures/", feedback.figures, name="feedback-figures"),
    path(f"{_FEEDBACK}incidents/", feedback.incidents, name="feedback-incidents"),
    path(f"{_FEEDBACK}incidents/<int:pk>/", feedback.incident, name="feedback-incident"),
    path(_SETTINGS, feedback.settings, name="feedback-settings"),
    path(f"{_SETTINGS}patterns/", feedback.pattern_test, name="feedback-patterns"),
    path(f"{_SETTINGS}rules/", feedback.rule, name="feedback-rule"),
    path(f"{_SETTINGS}tokens/", feedback.token, name="feedback-token"),
    path(f"{_SETTINGS}keys/", feedback.key, name="feedback-key"),
    path(f"{_SETTINGS}erase/", feedback.erase, name="feedback-erase"),
]
