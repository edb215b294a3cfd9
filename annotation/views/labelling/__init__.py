"""The labelling screen."""
