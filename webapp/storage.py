"""How collected static files are named: by their content, so that browsers may keep them for good."""

from whitenoise.storage import CompressedManifestStaticFilesStorage  # type: ignore[import-untyped]


class HashedStorage(CompressedManifestStaticFilesStorage):  # type: ignore[misc]
    """Hashed names also where one script imports another.

    Without it a script that the browser fetched after an upgrade imports modules that the browser
    kept from before, and the two do not fit each other.
    """

    support_js_module_import_aggregation = True
    # Our own scripts alone: packages bring files that speak of imports in their comments.
    _js_module_import_aggregation_patterns = (
        "js/*.js",
        CompressedManifestStaticFilesStorage._js_module_import_aggregation_patterns[1],
    )
