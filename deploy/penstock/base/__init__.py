"""What every part may use. It imports nothing of ours.

It imports with the standard library alone; `http` needs h11, which the extra `service` brings.
"""
