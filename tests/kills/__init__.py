"""`make router-kills`: a job killed again and again, and what its sinks hold afterwards."""
