"""The command `headrace`: `entry` is what the shell calls, `app` has the verbs."""
