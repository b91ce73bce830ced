"""From what a source received to record lines, one small module per format."""
