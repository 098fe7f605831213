"""What the controller (`actors.controller`) consists of.

`desired` is the topology that it brings about, with `edit`, which says what concerns which component. `set_up` has the
phases on the way: `preflight` asks whether a topology can be prepared, `preparation` prepares it. `reconciler` brings what
runs in line with it, and `launcher` creates components.

`bookkeeping` is the record: `prepared_record` is its file, and `kept_call`, `unrecorded`, `leaving`, `earlier_shapes` and
`noted_receivers` are its parts. `stopped_components` says what an edit must not break. `observation` and `lag` are what
`headrace status` shows, `calls` which calls of `headrace up` wait for it.
"""
