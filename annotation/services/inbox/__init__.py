"""Comments, notifications and the e-mails that tell of them."""
