"""A service bot and its user, who marks the issue resolved. The user is scripted."""
