"""The API as a whole: schema, URLs, errors, a client."""
