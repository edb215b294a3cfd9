"""Exchange: files of prompts and judgments, in and out."""
