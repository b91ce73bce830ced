"""Who is at a door, how that was found out, and what keeps others from reading along."""
