"""Sources of suggestions: an AI annotator, or a reward model; some are planted wrong."""
