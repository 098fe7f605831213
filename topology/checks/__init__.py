"""What can be told wrong of a topology before anything runs, and what is asked of its databases.

`static` judges the topology alone, with `topology.proof`; `transformations` those of its rules. `logging_needs` says which columns a
source's log must have, `functions` which functions of users are called where.
"""
