"""The redo of another site: how it is shipped, and the log that it becomes there."""
