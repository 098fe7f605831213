"""What PostgreSQL's catalogs say of tables: of a source's, of those that changes are applied to, of their partitions, foreign keys
and types."""
