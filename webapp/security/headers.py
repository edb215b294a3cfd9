"""Headers that neither Django nor django-csp sends."""

from collections.abc import Callable

from django.http import HttpRequest
from django.http.response import HttpResponseBase

# Pages use passkeys and the clipboard; every other feature is off.
_OURS = ("clipboard-write", "fullscreen", "publickey-credentials-create", "publickey-credentials-get")
_NOBODYS = (
    "accelerometer",
    "autoplay",
    "camera",
    "display-capture",
    "encrypted-media",
    "geolocation",
    "gyroscope",
    "magnetometer",
    "microphone",
    "midi",
    "payment",
    "serial",
    "usb",
    "xr-spatial-tracking",
)
PERMISSIONS = ", ".join([*(f"{power}=(self)" for power in _OURS), *(f"{power}=()" for power in _NOBODYS)])


class PermissionsPolicy:
    """Middleware that restricts the browser features available to pages."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        answer = self.get_response(request)
        answer.headers["Permissions-Policy"] = PERMISSIONS
        return answer
