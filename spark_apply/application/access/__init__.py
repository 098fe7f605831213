"""Who may speak with a Spark application: its secrets, its gateways, and the tokens of its tasks."""
