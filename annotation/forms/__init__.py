"""Forms of pages, read into the inputs of the services."""
