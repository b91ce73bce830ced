"""Whether a line is a record that its spec allows."""
