"""The ends of every stream of batches or redo, declared once.

`ports` has the two roles of every hop, `Publisher` and `Subscriber`. `staging` has what a queue promises to both,
`standby` what a source and a receiver of its redo promise each other. `serving` has `Links`, which gives the streams to
a host and serves its queue. gRPC implements them in `protos.links.grpc_links`, the simulation in
`headrace.simulation.network`.
"""
