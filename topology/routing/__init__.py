"""The components over which changes travel.

`ways` is the authority: for a table of a source, the components over which it reaches each apply process, and its form
on arrival. `paths` chooses between propagations. `combined` and `downstream` decide which components run where,
`change_classes` which changes the rules can tell apart. Proof, checks, edits and the plan are built on it.
"""
