from django.apps import AppConfig


class WebappConfig(AppConfig):
    name = "webapp"

    def ready(self) -> None:
        # Registered by being imported; not before the apps are ready, since checks look at them.
        from webapp import checks  # noqa: F401
