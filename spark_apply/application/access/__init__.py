"""Access to a Spark application: its secrets, its gateways, and the tokens of its tasks."""
