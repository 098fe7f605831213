"""Values of LCRs in PostgreSQL's terms: built-in types, Python objects, readable text, comparison in conditions."""
