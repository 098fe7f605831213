"""Checks of a topology before anything runs, and the questions to its databases.

`static` judges the topology alone, with `topology.proof`; `transformations` judges the transformations of its rules.
`logging_needs` lists the columns that a source's log must have. `functions` lists users' functions and the components
that call them.
"""
