"""Between components: queues, links over gRPC, certificates, and attackers who must not get in."""
