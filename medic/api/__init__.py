"""Public Python functions that correspond to the commands. Importing these modules does not import torch."""
