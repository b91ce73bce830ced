"""Key compaction: which segments are rewritten, and the threads that rewrite them."""
