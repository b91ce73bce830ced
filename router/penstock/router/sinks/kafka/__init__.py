"""The Kafka sink."""
