"""Every model of `annotation` in the Django admin. What must not change is read-only there."""

from annotation.admin import projects, work
