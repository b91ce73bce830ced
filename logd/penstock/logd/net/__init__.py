"""TCP: channels, listeners, and the links between nodes."""
