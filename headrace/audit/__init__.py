"""Who did what to a topology: `operator` runs a command, and `log` keeps the commands that change what runs or what rows are.

`verbs` says which those are. The command line notes them, `listing` is `headrace audit`.
"""
