"""Values of LCRs in PostgreSQL's terms: built-in types, Python objects, text for people, comparison in conditions."""
