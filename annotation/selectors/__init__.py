"""Reads, one module for each feature."""
