"""`headrace demo`: `run` replicates on this machine, kills a component in the middle and compares all tables; `load` is what clients do."""
