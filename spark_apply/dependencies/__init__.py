"""Which transactions of a batch must keep their order.

`hashes` gives each row's keys, `equality` and `relations` what counts as the same key, `hash_kernels` does both for whole
columns, `holds` has what must wait for an error transaction.
"""
