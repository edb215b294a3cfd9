"""Root URLs: pages, the API, sign-in and account protection, the admin.

Names of sign-in without a prefix are ours, the others allauth's. Addresses of allauth that change or verify
e-mail addresses are left out: Rondo verifies none.
"""

from allauth.account import views as account
from allauth.socialaccount.providers.github import views as github
from allauth.socialaccount.providers.google import views as google
from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path, re_path

from webapp.demo import pages as demo
from webapp.guide import views as guide
from webapp.navigation import pages as navigation
from webapp.operations import metrics
from webapp.operations import pages as operations
from webapp.security import pages as security

handler500 = "webapp.operations.errors.server_error"

urlpatterns: list[URLPattern | URLResolver] = [
    # Patterns are compared in order, so the most frequent ones come first.
    path("", include("annotation.urls")),
    path("", include("training.urls")),
    path("api/v1/", include("webapp.api.urls")),
    path("search/", navigation.results, name="search"),
    path("guide/design/", navigation.design, name="design"),
    path("guide/", guide.index, name="guide"),
    path("guide/<slug:kind>/<slug:name>/", guide.page, name="guide-page"),
    # Those under /health/ are answered by a middleware, with the same views.
    path("health/live", operations.live, name="health-live"),
    path("health/ready", operations.ready, name="health-ready"),
    path("metrics", metrics.metrics, name="metrics"),
    path("status/", operations.status, name="status"),
    path("start/", demo.start, name="start"),
    path("start/demo/", demo.start_demo, name="start-demo"),
    path("start/starter/", demo.start_starter, name="start-starter"),
    path("login/", account.login, name="login"),
    path("login/", account.login, name="account_login"),
    path("logout/", security.logout, name="logout"),
    path("logout/", security.logout, name="account_logout"),
    path("signup/", account.signup, name="account_signup"),
    path("login/inactive/", account.account_inactive, name="account_inactive"),
    path("account/", security.account, name="account"),
    path("account/sessions/<int:pk>/end/", security.session_end, name="session-end"),
    path("account/sessions/end-others/", security.sessions_end_others, name="sessions-end-others"),
    path("account/notifications/", security.mail_choice, name="mail-choice"),
    path("account/data/", security.account_export, name="account-export"),
    path("account/delete/", security.account_delete, name="account-delete"),
    path("account/reauthenticate/", account.reauthenticate, name="account_reauthenticate"),
    path("account/password/", account.password_change, name="account_change_password"),
    path("account/password/set/", account.password_set, name="account_set_password"),
    path("account/password/reset/", security.password_reset, name="account_reset_password"),
    path("account/password/reset/sent/", account.password_reset_done, name="account_reset_password_done"),
    re_path(
        r"^account/password/reset/key/(?P<uidb36>[0-9A-Za-z]+)-(?P<key>.+)/$",
        account.password_reset_from_key,
        name="account_reset_password_from_key",
    ),
    path(
        "account/password/reset/key/done/",
        account.password_reset_from_key_done,
        name="account_reset_password_from_key_done",
    ),
    path("account/second-factor/", include("allauth.mfa.urls")),
    path("account/connections/", include("allauth.socialaccount.urls")),
    path("login/with/github/", security.provider_page("github", github.oauth2_login), name="github_login"),
    path(
        "login/with/github/callback/",
        security.provider_page("github", github.oauth2_callback),
        name="github_callback",
    ),
    path("login/with/google/", security.provider_page("google", google.oauth2_login), name="google_login"),
    path(
        "login/with/google/callback/",
        security.provider_page("google", google.oauth2_callback),
        name="google_callback",
    ),
    path("login/with/", include("allauth.socialaccount.providers.openid_connect.urls")),
    path("admin/", admin.site.urls),
]
