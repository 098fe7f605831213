"""What runs in the Spark tasks: apply servers, which write groups at the destination."""
