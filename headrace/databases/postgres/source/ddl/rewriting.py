"""SQL that notes which tables a statement writes anew, and how (`objects` has the rest of the recording)."""

from __future__ import annotations

from headrace.databases.postgres.ddl.structure_query import OWN_CASTS

__all__ = ["NOTE_REWRITE", "REWRITING", "SINCE_REWRITING"]

# The setting belongs to the transaction, and goes with a savepoint that is rolled back. ' 16385:4:16403 16390:2:16390':
# tables, the reasons of their rewrites (`AT_REWRITE_*`), and the files that have their rows until then.
NOTE_REWRITE = """
CREATE OR REPLACE FUNCTION headrace_ddl.note_rewrite() RETURNS event_trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    PERFORM set_config('headrace_ddl.rewritten', concat(current_setting('headrace_ddl.rewritten', true), ' ',
        pg_event_trigger_table_rewrite_oid(), ':', pg_event_trigger_table_rewrite_reason(), ':',
        pg_relation_filenode(pg_event_trigger_table_rewrite_oid())), true);
EXCEPTION WHEN OTHERS THEN
    RAISE LOG 'headrace: a rewrite was not noted: %', SQLERRM;
END $body$;
"""
"""The function of the event trigger headrace_ddl_rewrite."""

REWRITING = """-- more than one where an earlier statement's were not recorded: the file is that of the last one
        SELECT coalesce(bit_or(r.found[1]::integer), 0), (array_agg(r.found[2]::bigint ORDER BY r.place DESC))[1]
        INTO reasons, rewritten_from
        FROM regexp_matches(rewrites, format(' %s:([0-9]+)(?::([0-9]+))?', each.relation), 'g')
            WITH ORDINALITY AS r (found, place);"""
"""In `note`: reads the reasons, and the file that had the rows, of one table."""

SINCE_REWRITING = f"""jsonb_build_object('from', rewritten_from, 'encoding', getdatabaseencoding(),
                'casts', {OWN_CASTS})"""
"""In `note`: what a destination needs to know to write its rows anew alike."""
