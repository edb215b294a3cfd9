"""URLs below /api/v1/."""

from django.urls import URLPattern, path, re_path

from annotation.api.urls import urlpatterns as annotation
from training.api.urls import urlpatterns as training
from webapp.api import views
from webapp.operations.api import StatusView
from webapp.security.api import DeletionView, PersonalDataView, SessionsView, SessionView

urlpatterns: list[URLPattern] = [
    *annotation,
    *training,
    path("me/data/", PersonalDataView.as_view(), name="api-me-data"),
    path("me/deletion/", DeletionView.as_view(), name="api-me-deletion"),
    path("status/", StatusView.as_view(), name="api-status"),
    path("sessions/", SessionsView.as_view(), name="api-sessions"),
    path("sessions/<int:pk>/", SessionView.as_view(), name="api-session"),
    path("openapi.json", views.SchemaView.as_view(), name="api-schema"),
    path("docs/", views.docs, name="api-docs"),
    # A regular expression, because `path` does not match line ends.
    re_path(r"^(?P<rest>[\s\S]*)$", views.UnknownView.as_view(), name="api-unknown"),
]
