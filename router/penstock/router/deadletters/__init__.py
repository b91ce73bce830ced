"""Dead-letter records: written to files, published to a stream, read back."""
