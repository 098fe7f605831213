"""What every stream between components stands on, whatever it carries.

`transport` is the only module that knows gRPC: servers, channels, streams, errors. `identity` says who a site is, `admission` who is
served, `rates` how often, `revoked` which certificates are not taken any more. `fragments` cuts what is too large for a message,
`compression` makes the pieces of a batch smaller.
"""
