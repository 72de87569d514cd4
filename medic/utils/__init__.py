"""Small helpers that all packages may use."""
