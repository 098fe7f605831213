"""Apply servers: run in Spark tasks and write groups at the destination."""
