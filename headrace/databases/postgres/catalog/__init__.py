"""PostgreSQL's catalogs: a source's tables, the tables that changes are applied to, and their partitions.

Foreign keys and types have separate modules.
"""
