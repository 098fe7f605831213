"""An apply process and its parts: reader, coordinator, servers, handlers; whole on threads, or on Spark."""
