"""Which transactions of a batch must keep their order.

`hashes` computes each row's key hashes and tracks the last group with each key; `tracking_kernels` does that for whole
batches. `holds` finds the transactions that must wait behind an error transaction.
"""
