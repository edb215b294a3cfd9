"""URLs of sign-in and account protection. Names without a prefix are ours, the others allauth's.

Addresses of allauth that change or verify e-mail addresses are left out: Rondo verifies none.
"""

from allauth.account import views as account
from allauth.socialaccount.providers.github import views as github
from allauth.socialaccount.providers.google import views as google
from django.urls import URLPattern, URLResolver, include, path, re_path

from webapp.security import pages

urlpatterns: list[URLPattern | URLResolver] = [
    path("login/", account.login, name="login"),
    path("login/", account.login, name="account_login"),
    path("logout/", pages.logout, name="logout"),
    path("logout/", pages.logout, name="account_logout"),
    path("signup/", account.signup, name="account_signup"),
    path("login/inactive/", account.account_inactive, name="account_inactive"),
    path("account/", pages.account, name="account"),
    path("account/sessions/<int:pk>/end/", pages.session_end, name="session-end"),
    path("account/sessions/end-others/", pages.sessions_end_others, name="sessions-end-others"),
    path("account/notifications/", pages.mail_choice, name="mail-choice"),
    path("account/data/", pages.account_export, name="account-export"),
    path("account/delete/", pages.account_delete, name="account-delete"),
    path("account/reauthenticate/", account.reauthenticate, name="account_reauthenticate"),
    path("account/password/", account.password_change, name="account_change_password"),
    path("account/password/set/", account.password_set, name="account_set_password"),
    path("account/password/reset/", pages.password_reset, name="account_reset_password"),
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
    path("login/with/github/", pages.provider_page("github", github.oauth2_login), name="github_login"),
    path(
        "login/with/github/callback/",
        pages.provider_page("github", github.oauth2_callback),
        name="github_callback",
    ),
    path("login/with/google/", pages.provider_page("google", google.oauth2_login), name="google_login"),
    path(
        "login/with/google/callback/",
        pages.provider_page("google", google.oauth2_callback),
        name="google_callback",
    ),
    path("login/with/", include("allauth.socialaccount.providers.openid_connect.urls")),
]
