"""Decisions of the reader (`spark_apply.driver.reader`) about a batch.

`row_selection` drops rows that need not be applied. `destination_names` gives columns their names at the destination.
`key_forms` decides whether hashes order a batch against earlier ones. `pieces` queues the result for the coordinator.
"""
