"""URLs of the navigation."""

from django.urls import path

from webapp.navigation import pages

urlpatterns = [
    path("search/", pages.results, name="search"),
    path("guide/design/", pages.design, name="design"),
]
