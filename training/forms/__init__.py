"""Forms of the training pages."""
