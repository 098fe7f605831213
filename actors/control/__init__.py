"""What the controller (`actors.controller`) consists of.

`prepared_record` is what it may not forget. `preflight` asks whether a topology can be prepared, `edit` says which
components a change concerns, `earlier_shapes`, `kept_call` and `stopped_components` what an edit must not break, and
`launcher` creates components. `observation` and `lag` are what `headrace status` shows, `calls` which calls of
`headrace up` wait for it.
"""
