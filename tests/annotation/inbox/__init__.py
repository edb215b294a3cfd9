"""Comments, inbox and e-mail."""
