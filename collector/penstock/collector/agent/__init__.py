"""The running collector: its parts, its reload, its admin socket, its workers."""
