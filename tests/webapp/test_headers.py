"""Headers of every answer for the browser; Django's checks find a set-up as in production safe."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings as django_settings
from django.test import Client
from django.urls import reverse

from annotation.models import Project, User

ROOT = Path(__file__).resolve().parents[2]

PRODUCTION = {
    "RONDO_HTTPS": "true",
    "RONDO_ALLOWED_HOSTS": "rondo.example.org",
    "RONDO_TRUSTED_ORIGINS": "https://rondo.example.org",
    "RONDO_STATIC_COLLECTED": "true",
}


@pytest.mark.parametrize("address", ["/login/", "/", "/nowhere/", "/admin/login/", "/account/"])
def test_every_answer_carries_the_headers(client: Client, admin: User, address: str):
    if address != "/login/":
        client.force_login(admin)
    answer = client.get(address)
    policy = answer["Content-Security-Policy"]
    assert "unsafe" not in policy
    for part in (
        "default-src 'none'",
        "script-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "require-trusted-types-for 'script'",
    ):
        assert part in policy
    assert answer["X-Frame-Options"] == "DENY"
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["Referrer-Policy"] == "same-origin"
    assert answer["Cross-Origin-Opener-Policy"] == "same-origin"
    assert "camera=()" in answer["Permissions-Policy"]
    assert "publickey-credentials-get=(self)" in answer["Permissions-Policy"]


def test_a_name_that_is_not_ours_is_refused(client: Client, settings, db: None):
    settings.ALLOWED_HOSTS = ["rondo.example.org"]
    assert client.get("/login/", headers={"Host": "evil.example"}).status_code == 400
    assert client.get("/login/", headers={"Host": "rondo.example.org"}).status_code == 200


def production(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    # What developers and tests set (browser tests: DJANGO_ALLOW_ASYNC_UNSAFE) is not there in production.
    ours = ("RONDO_", "DATABASE_URL", "DJANGO_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment |= PRODUCTION | {"RONDO_HOME": str(home), "DJANGO_SETTINGS_MODULE": "webapp.settings"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_a_production_set_up_passes_every_check(tmp_path: Path):
    (tmp_path / "static").mkdir()
    done = production("manage.py", "check", "--deploy", "--fail-level", "WARNING", home=tmp_path)
    assert done.returncode == 0, done.stderr


def test_in_production_cookies_and_requests_go_over_tls_alone(tmp_path: Path):
    names = ("SESSION_COOKIE_SECURE", "CSRF_COOKIE_SECURE", "SECURE_SSL_REDIRECT", "SECURE_HSTS_SECONDS")
    code = f"from webapp import settings; print(*[getattr(settings, n) for n in {names}])"
    done = production("-c", code, home=tmp_path)
    assert done.stdout.split() == ["True", "True", "True", str(30 * 24 * 3600)], done.stderr


def test_cookies_are_out_of_reach_of_scripts(client: Client, alice: User):
    client.post("/login/", {"username": "alice", "password": "correct horse battery staple"})
    cookie = client.cookies[django_settings.SESSION_COOKIE_NAME]
    assert (cookie["httponly"], cookie["samesite"]) == (True, "Lax")


def test_our_pages_and_the_admin_have_one_policy_for_strings():
    """Our own pages have it in theme.js, since the labelling screen counts its requests."""
    admins = (ROOT / "static" / "js" / "trusted-types.js").read_text(encoding="utf-8")
    policy = admins[admins.index("  globalThis.trustedTypes") : admins.rindex("})();")]
    assert "createHTML" in policy
    assert policy in (ROOT / "static" / "js" / "theme.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["project", "label", "members", "statistics"])
def test_no_cache_on_the_way_keeps_a_page_of_a_project(
    client: Client, project: Project, carol: User, page: str
):
    client.force_login(carol)
    response = client.get(reverse(page, args=[project.slug]), follow=True)
    assert response.status_code == 200
    assert {"private", "no-store"} & set(response["Cache-Control"].split(", "))
