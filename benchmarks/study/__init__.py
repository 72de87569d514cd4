"""Train methods on all targets of a benchmark, and compare the rules that choose a run's result, or the methods."""
