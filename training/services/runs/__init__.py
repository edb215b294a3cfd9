"""Runs: their files, their trainer process, their memory."""
