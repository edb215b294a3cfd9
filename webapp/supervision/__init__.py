"""Parts of `manage.py up`: checks before the start, programs, process manager, watch."""
