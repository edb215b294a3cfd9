"""URLs of the first-run page."""

from django.urls import path

from webapp.demo import pages

urlpatterns = [
    path("start/", pages.start, name="start"),
    path("start/demo/", pages.start_demo, name="start-demo"),
    path("start/starter/", pages.start_starter, name="start-starter"),
]
