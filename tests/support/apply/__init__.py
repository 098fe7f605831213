"""An apply process and its parts: reader, coordinator, servers, handlers; complete on threads, or on Spark."""
