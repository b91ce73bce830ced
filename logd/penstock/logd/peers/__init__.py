"""How the nodes of a cluster talk: one TCP endpoint each, plain or with mutual TLS."""
