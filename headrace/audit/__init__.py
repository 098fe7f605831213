"""Who did what to a topology.

`operator` identifies the user of a command, and `log` keeps the commands that change what runs or rows. `verbs` says
which commands these are. The command line records them, and `listing` is `headrace audit`.
"""
