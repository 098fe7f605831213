"""Messages, services and streams between components.

`links` contains the streams of each kind of component, `codec` encodes LCR batches, `wire` is the common base of all streams. The
`*.proto` files, and the modules generated from them, are in this folder.

gRPC prepares its own threads for a `fork`, and starts them again in the child. Every program that we start is such a
child for a moment. Its descriptors are closed before the program begins, and a thread that finds its own descriptor
closed kills the child (grpc/grpc issue 43055). The child never uses gRPC before it becomes the program, so the
preparation is switched off; a start takes 4 ms instead of 16.
"""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # read when gRPC is first used
