"""The model: backbone, adapters, attention."""
