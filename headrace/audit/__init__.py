"""Who did what to a topology: the operator, and the log of the commands that change what runs or what rows are."""
