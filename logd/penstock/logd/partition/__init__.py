"""A partition: its publish queue, its log writer, its snapshots, retention and purges."""
