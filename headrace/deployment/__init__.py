"""A topology file and its running components: start, end, wait and query.

`deployment` has the calls that the verbs make. `inspection` examines a file and its databases before anything runs, and
`refusals` has the conditions under which `up` does not start. `waiting` and `failures` watch until everything runs or
has caught up. `endings` ends components, and `removal` does what `down --purge` removes.
"""
