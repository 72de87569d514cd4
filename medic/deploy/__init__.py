"""Use of a trained model: the file that holds it, and its decisions on new images."""
