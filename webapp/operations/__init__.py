"""Monitoring: health, metrics, log lines and the status page."""
