"""Many runs: what is asked for, what is there, and who does the rest."""
