"""Code that every part may use; it imports nothing of ours.

It imports with the standard library alone; `http` needs h11, which the extra `service` brings.
"""
