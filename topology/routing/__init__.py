"""Over which components changes travel.

`ways` knows it for a table of a source: over which components it comes to each apply process, and as what it arrives; `paths` chooses
between propagations. `combined` and `downstream` say which components run where, `change_classes` which changes the rules can tell apart.
Proof, checks, edits and the plan are built on it.
"""
