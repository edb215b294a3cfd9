"""Projects, their questions and invitations."""
