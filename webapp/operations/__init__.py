"""What whoever runs Rondo sees of it: health, figures, lines of logs, and a page that says what is wrong."""
