"""Addresses: people's pages, the API, the admin."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("", include("training.urls")),
    path("", include("annotation.urls")),
]
