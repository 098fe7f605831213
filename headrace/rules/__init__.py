"""Rules: conditions, rule sets and their evaluation on batches."""
