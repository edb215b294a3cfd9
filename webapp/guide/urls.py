"""URLs of the guide."""

from django.urls import path

from webapp.guide import views

urlpatterns = [
    path("guide/", views.index, name="guide"),
    path("guide/<slug:kind>/<slug:name>/", views.page, name="guide-page"),
]
