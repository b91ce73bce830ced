"""A job: its configuration, its queries, and their lifecycle."""
