"""Sampling of responses from model servers."""
