"""The NATS connection: protocol, login, subscriptions, reconnecting."""
