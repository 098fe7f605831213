"""What the JVMs of a Spark application are started with: their class path, jars and archived classes."""
