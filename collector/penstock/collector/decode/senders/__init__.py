"""What senders of other products post, made into records: one module for each protocol."""
