"""Configuration: turns the settings that a user writes into every value that determines a run."""
