"""Tables that several apply processes write: which of them copies, and what of a table is not copied."""
