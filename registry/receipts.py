"""Making a receipt of a model's deletion, out of the log."""
