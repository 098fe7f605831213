"""Tables that several apply processes write: which of them copies, and which rows need no copy."""
