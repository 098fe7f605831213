"""Edits of a topology: the changes between two versions of its file, and the record of the last one (`stored`).

`changes` compares each component's part. The controller and `plan` ask the other modules what an edit would harm:
`overtaken`, `replaced`, `receivers`, `subset_changes`, `capture_scns`.
"""
