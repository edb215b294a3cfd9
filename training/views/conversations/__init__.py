"""Live conversations: the list, the screen on which one talks and judges, and a manager's settings."""
