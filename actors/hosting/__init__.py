"""How components run: in which process, driven by whom, and on Ray.

`host` drives the synchronous core of one component, `life` is what it says of that, `components` holds the hosts of a
process, `processes` says which module makes a component of which kind. `runtime` alone knows Ray. `child_process` runs a
program of its own beside a component, `log_bound` bounds what that writes. Every component's module builds on this room,
and nothing here knows one of them.
"""
