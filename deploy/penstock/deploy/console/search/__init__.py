"""The search page's part of the server: its form, and searches that run beside the event loop."""
