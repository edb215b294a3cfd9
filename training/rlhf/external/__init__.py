"""TRL as the trainer of a run: data out, its command line, metrics and adapter back. See `run`."""
