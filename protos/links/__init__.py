"""The streams of each kind of component over gRPC, both ends of them.

`grpc_links` is what hosts are given (`headrace.links.serving`): it makes the streams of `queue_link`, `redo_link` and `redo_transport`.
`apply_link` connects the coordinator of an apply process with its servers, `spark_link` apply processes with their site's Spark
application.
"""
