"""What every part may use. It imports nothing of ours, and nothing but the standard library."""
