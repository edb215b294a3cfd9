"""Other sites that people may sign in with. Read by the settings, so it imports nothing of Django."""

from typing import Any

Client = tuple[str, str]
"""What the other site calls this Rondo, and the secret between the two."""


def providers(
    *, github: Client, google: Client, openid: Client, openid_url: str, openid_name: str
) -> dict[str, Any]:
    """`SOCIALACCOUNT_PROVIDERS` for those whose client is set; nothing is asked of any other."""
    found: dict[str, Any] = {}
    for name, (client_id, secret) in (("github", github), ("google", google)):
        if client_id and secret:
            found[name] = {"APPS": [{"client_id": client_id, "secret": secret}], "OAUTH_PKCE_ENABLED": True}
    if openid_url and all(openid):
        found["openid_connect"] = {
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
    return found
