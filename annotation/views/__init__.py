"""Pages: each parses, authorises, makes one call and renders."""
