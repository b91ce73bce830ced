"""Decoders of protocols that senders of other products use: one module for each protocol."""
