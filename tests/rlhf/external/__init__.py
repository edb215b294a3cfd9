"""Tests of TRL as the trainer of a run."""
