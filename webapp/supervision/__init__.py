"""What `manage.py up` is made of: checks before the start, the programs, the process manager, the watch."""
