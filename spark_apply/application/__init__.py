"""The Spark application of a destination site: its start, its driver process, its settings."""
