"""What the reader (`spark_apply.driver.reader`) decides about a batch, each decision apart.

`row_selection` drops rows that need not be applied, `destination_names` gives columns the names that they have here,
`key_forms` says whether hashes order a batch behind what went before it. `pieces` is what goes on to the coordinator.
"""
