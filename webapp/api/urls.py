"""URLs below /api/v1/."""

from django.urls import URLPattern, path, re_path

from annotation.api.operations import urls_of
from annotation.api.urls import urlpatterns as annotation
from training.api.urls import urlpatterns as training
from webapp.api import views
from webapp.operations import api as operations
from webapp.security import api as security

urlpatterns: list[URLPattern] = [
    *annotation,
    *training,
    *urls_of(operations, security),
    path("openapi.json", views.SchemaView.as_view(), name="api-schema"),
    path("docs/", views.docs, name="api-docs"),
    # A regular expression, because `path` does not match line ends.
    re_path(r"^(?P<rest>[\s\S]*)$", views.UnknownView.as_view(), name="api-unknown"),
]
