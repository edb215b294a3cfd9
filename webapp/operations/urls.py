"""URLs for operators. Those under /health/ are answered by a middleware, with the same views."""

from django.urls import path

from webapp.operations import metrics, pages

urlpatterns = [
    path("health/live", pages.live, name="health-live"),
    path("health/ready", pages.ready, name="health-ready"),
    path("metrics", metrics.metrics, name="metrics"),
    path("status/", pages.status, name="status"),
]
