"""Edits of a topology: what changes between two versions of its file, and what is kept of the last one (`stored`).

`changes` compares each component's part. The controller and `plan` ask the others what an edit would harm: `overtaken`, `replaced`,
`receivers`, `subset_changes`, `capture_scns`.
"""
