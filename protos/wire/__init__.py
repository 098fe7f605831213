"""The common base of every stream between components, whatever it carries.

`transport` is the only module that knows gRPC: servers, channels, streams, errors. `identity` defines a site's identity, `admission` who is
served, `rates` how often, and `revoked` which certificates are no longer accepted. `fragments` splits what is too large for a message,
`compression` compresses the pieces of a batch.
"""
