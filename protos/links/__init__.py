"""The gRPC streams of each kind of component, both ends of them.

`grpc_links` implements what hosts use (`headrace.links.serving`): it makes the streams of `queue_link`, `redo_link` and `redo_transport`.
`apply_link` connects the coordinator of an apply process with its apply servers, `spark_link` apply processes with their site's Spark
application.
"""
