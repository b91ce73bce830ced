"""What the collector writes down of its progress, and reads when it starts."""
