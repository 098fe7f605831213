"""Messages, services and streams between components.

`links` has the streams of each kind of component, `codec` makes bytes of LCR batches, `wire` is what every stream stands on. The
`*.proto` files and the modules generated from them are beside them.

gRPC prepares its own threads for a `fork`, and starts them again in the child. Every program that we start is such a
child for a moment: its descriptors are closed there before it begins, and the thread that finds its own gone kills the
child (grpc/grpc issue 43055). What we start never uses gRPC before it is a program of its own, so the preparation is
switched off; a start takes 4 ms instead of 16.
"""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # read when gRPC is first used
