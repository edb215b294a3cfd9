from django.apps import AppConfig


class WebappConfig(AppConfig):
    name = "webapp"

    def ready(self) -> None:
        # Registered by being imported; not before the apps are ready, since checks look at them.
        from webapp import checks  # noqa: F401
        from webapp.operations import jobs  # noqa: F401 - connects to Celery's signals
