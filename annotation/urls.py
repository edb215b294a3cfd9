"""Pages where people judge."""

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import URLPattern, path

from annotation.views import ahead, drafts, keys, labelling, people, projects, queues, reviews, statistics

urlpatterns: list[URLPattern] = [
    path("login/", LoginView.as_view(redirect_authenticated_user=True), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("account/language/", people.language, name="language"),
    path("account/keys/", keys.keys, name="keys"),
    path("", projects.projects, name="projects"),
    path("projects/<slug:slug>/", projects.project, name="project"),
    path("projects/<slug:slug>/guidelines/", projects.guidelines, name="guidelines"),
    path("projects/<slug:slug>/guidelines/read/", projects.guidelines_read, name="guidelines-read"),
    path("projects/<slug:slug>/categories.css", projects.category_colours, name="category-colours"),
    path("projects/<slug:slug>/label/", labelling.label, name="label"),
    path("projects/<slug:slug>/label/next/", ahead.label_ahead, name="label-ahead"),
    path("projects/<slug:slug>/label/<int:pk>/submit/", labelling.submit, name="submit"),
    path("projects/<slug:slug>/label/<int:pk>/draft/", drafts.draft, name="draft"),
    path("projects/<slug:slug>/label/<int:pk>/skip/", labelling.skip, name="skip"),
    path("projects/<slug:slug>/label/<int:pk>/flag/", labelling.flag, name="flag"),
    path("projects/<slug:slug>/label/<int:pk>/renew/", labelling.renew, name="renew"),
    path("projects/<slug:slug>/label/<int:pk>/revise/", labelling.revise, name="revise"),
    path("projects/<slug:slug>/reviews/", reviews.reviews, name="reviews"),
    path("projects/<slug:slug>/reviews/<int:pk>/", reviews.review, name="review"),
    path("projects/<slug:slug>/reviews/<int:pk>/decide/", reviews.decide, name="review-decide"),
    path("projects/<slug:slug>/statistics/", statistics.statistics, name="statistics"),
    path("projects/<slug:slug>/statistics/items/", statistics.items, name="statistics-items"),
    path("projects/<slug:slug>/items/<int:pk>/", statistics.item, name="statistics-item"),
    path("projects/<slug:slug>/withheld/", queues.withheld, name="withheld"),
    path("projects/<slug:slug>/withheld/<int:pk>/", queues.decide_withheld, name="withheld-decide"),
    path("projects/<slug:slug>/gold/", queues.gold, name="gold"),
    path("projects/<slug:slug>/gold/make/", queues.make_gold, name="gold-make"),
]
