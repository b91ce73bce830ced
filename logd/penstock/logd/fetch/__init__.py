"""The fetch protocol and its server: reading and control over framed TCP."""
