"""An OpenAI-compatible HTTP server: one backbone, every checkpoint an adapter on it.

python -m training.serving --models var/models --checkpoints var/checkpoints
"""
