"""Tables of finished runs, and those of the paper."""
