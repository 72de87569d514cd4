"""Result tables of finished runs, and the paper's tables."""
