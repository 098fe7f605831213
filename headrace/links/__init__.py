"""What a batch travels between, declared once.

`ports` has the two roles of every hop, `Publisher` and `Subscriber`, and `Links`, which gives them to a host. `staging` has what a queue
promises to both, `standby` what a source and a receiver of its redo promise each other. gRPC implements them in `protos.links`, the
simulation in `headrace.simulation.network`.
"""
