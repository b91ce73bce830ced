"""Decoders: they turn what a source received into record lines, one module per format."""
