"""How components run: the process, the driving thread, and Ray.

`host` drives the synchronous core of one component and `life` records its state and errors. `components` holds the hosts
of a process; `processes` maps a component to its process and its factory. `runtime` alone knows Ray. `child_process`
runs a separate program for a component, and `log_bound` bounds that program's log. Every component's module builds on
this package, which imports none of them.
"""
