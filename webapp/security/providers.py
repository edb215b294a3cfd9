"""Identity providers for sign-in. The settings import this module, so it imports no Django."""

from typing import Any

Client = tuple[str, str]
"""Client id and client secret."""


def providers(
    *, github: Client, google: Client, openid: Client, openid_url: str, openid_name: str
) -> dict[str, Any]:
    """Return `SOCIALACCOUNT_PROVIDERS` for the providers with a client."""
    apps: dict[str, Any] = {}
    for name, (client_id, secret) in (("github", github), ("google", google)):
        if client_id and secret:
            apps[name] = {"APPS": [{"client_id": client_id, "secret": secret}], "OAUTH_PKCE_ENABLED": True}
    if openid_url and all(openid):
        apps["openid_connect"] = {
            "OAUTH_PKCE_ENABLED": True,
            "APPS": [
                {
                    "provider_id": "openid",
                    "name": openid_name,
                    "client_id": openid[0],
                    "secret": openid[1],
                    "settings": {"server_url": openid_url},
                }
            ],
        }
    return apps
