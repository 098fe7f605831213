"""Start of a Spark application's JVMs: their class path, jars and archived classes."""
