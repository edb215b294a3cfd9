"""Addresses: people's pages, the API, the admin."""

from allauth.account.decorators import secure_admin_login
from django.contrib import admin
from django.urls import include, path

# The admin's own form knows neither a second factor nor a passkey.
admin.site.login = secure_admin_login(admin.site.login)  # type: ignore[method-assign]

handler500 = "webapp.away.server_error"

urlpatterns = [
    # First what is asked most: an address is compared with one pattern after the other.
    path("", include("annotation.urls")),
    path("", include("training.urls")),
    path("api/v1/", include("webapp.api_urls")),
    path("", include("webapp.operations.urls")),
    path("", include("webapp.security.urls")),
    path("admin/", admin.site.urls),
]
