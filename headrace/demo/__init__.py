"""`headrace demo`: `run` replicates here, kills a component and compares all tables; `load` has the clients."""
