"""Background jobs: claims, workers, events."""
