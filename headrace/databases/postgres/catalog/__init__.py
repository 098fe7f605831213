"""What PostgreSQL's catalogs say of tables: of a source's, of those that changes are applied to, of their partitions.

Foreign keys and types have modules of their own.
"""
