"""Which transactions of a batch must keep their order.

`hashes` gives each row's keys and tracks which group had them last, `tracking_kernels` does that for whole batches, `holds`
has what must wait for an error transaction.
"""
