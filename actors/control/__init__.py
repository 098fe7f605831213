"""The parts of the controller (`actors.controller`).

`desired` is the topology that it works towards, and `edit` determines what concerns which component. `set_up` contains
the phases on the way: `preflight` checks whether a topology can be prepared, `preparation` prepares it. `reconciler`
brings running components in line with it, and `launcher` creates components.

`bookkeeping` is the record: `prepared_record` is its file, and `kept_call`, `unrecorded`, `leaving`, `earlier_shapes` and
`noted_receivers` are its parts. `stopped_components` determines which stops an edit must not lift. `observation` and `lag`
feed `headrace status`; `calls` tracks the calls of `headrace up` that wait for the controller.
"""
