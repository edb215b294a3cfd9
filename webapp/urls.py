"""Root URLs: pages, the API, the admin."""

from django.contrib import admin
from django.urls import include, path

handler500 = "webapp.operations.database_unavailable.server_error"

urlpatterns = [
    # Patterns are compared in order, so the most frequent ones come first.
    path("", include("annotation.urls")),
    path("", include("training.urls")),
    path("api/v1/", include("webapp.api.urls")),
    path("", include("webapp.navigation.urls")),
    path("", include("webapp.guide.urls")),
    path("", include("webapp.operations.urls")),
    path("", include("webapp.demo.urls")),
    path("", include("webapp.security.urls")),
    path("admin/", admin.site.urls),
]
