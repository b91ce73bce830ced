"""Sources for the senders of other products, over HTTP: one module for each protocol."""
