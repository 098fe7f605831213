"""SQL of the procedure with which `up` compares tables with their last records of DDL.

It records the table as it is now: as its first record, or as a change that nobody recorded.
"""

from __future__ import annotations

from headrace.databases.postgres.source.ddl.references import REFERENCES

__all__ = ["WATCH"]

_WATCH_WAIT = "1s"
_MISSED = "-- found by headrace up: what ran is not recorded"

# One transaction for each table: a user's DDL waits for one table's base alone. SHARE UPDATE EXCLUSIVE waits for ALTER
# TABLE and for CREATE INDEX that began before the event triggers existed, and so do not fire them. A procedure with
# COMMIT can have no settings: sessions of Headrace have an empty search_path.
#
# A table that differs from its last record was changed while nothing was recorded, or by two transactions at the same
# time. Its record is a change of which the table before is not known, so that destinations name it and do not make it.
# An index with another number and nothing else is no change: REINDEX CONCURRENTLY makes those.
#
# `since` is given if the log was out of the publication: a table with a change that it does not see gets such a record,
# too, unless an earlier attempt wrote it. `seen` is older than the choice of the tables: `compared` gets it when all of
# them were compared.
WATCH = f"""
CREATE OR REPLACE PROCEDURE headrace_ddl.watch(
    tables oid[], publication name DEFAULT NULL, since pg_snapshot DEFAULT NULL, seen pg_snapshot DEFAULT NULL
) LANGUAGE plpgsql AS $body$
DECLARE
    entry pg_catalog.pg_publication_rel;
    each oid;
    latest record;
    old jsonb;
    new jsonb;
    now_seen pg_catalog.pg_snapshot;
    is_unpublished boolean;
    about jsonb;
BEGIN
    seen := coalesce(seen, pg_catalog.pg_current_snapshot());
    SELECT r.* INTO entry FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid
    WHERE p.pubname = publication AND r.prrelid = pg_catalog.to_regclass('headrace_ddl.log');
    FOREACH each IN ARRAY tables LOOP
        IF EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = each) THEN
            PERFORM pg_catalog.set_config('lock_timeout', '{_WATCH_WAIT}', true);
            EXECUTE pg_catalog.format('LOCK TABLE ONLY %s IN SHARE UPDATE EXCLUSIVE MODE', each::pg_catalog.regclass);
            latest := NULL;
            SELECT l.xid, l.content::pg_catalog.jsonb AS content INTO latest FROM headrace_ddl.log l
            WHERE l.relation = each ORDER BY l.number DESC LIMIT 1;
            old := nullif(latest.content -> 'after', 'null');
            SELECT pg_catalog.pg_current_snapshot() INTO now_seen;
            new := headrace_ddl.structure_of(each);
            is_unpublished := since IS NOT NULL AND new IS NOT NULL
                AND (latest.content ->> 'entry')::bigint IS DISTINCT FROM entry.oid::bigint
                AND EXISTS (
                SELECT FROM headrace_ddl.log l WHERE l.relation = each AND NOT pg_catalog.pg_visible_in_snapshot(l.xid, since)
                AND NOT l.content::pg_catalog.jsonb ? 'base');
            IF is_unpublished THEN
                old := (SELECT nullif(l.content::pg_catalog.jsonb -> 'after', 'null') FROM headrace_ddl.log l
                        WHERE l.relation = each
                          AND (pg_catalog.pg_visible_in_snapshot(l.xid, since) OR l.content::pg_catalog.jsonb ? 'base')
                        ORDER BY l.number DESC LIMIT 1);
            END IF;
            IF is_unpublished OR old - 'role' IS DISTINCT FROM new - 'role' THEN
                PERFORM pg_catalog.convert_to(new::text, 'UTF8');
                about := pg_catalog.jsonb_build_object('format', 1, 'after', new, 'file', pg_catalog.pg_relation_filenode(each)::bigint,
                    'references', {REFERENCES.format(relation="each")});
                IF NOT is_unpublished AND (old IS NULL OR new IS NULL OR (
                    old - 'role' - 'indexes' = new - 'role' - 'indexes'
                    AND (SELECT pg_catalog.jsonb_agg(i - 'number') FROM pg_catalog.jsonb_array_elements(old -> 'indexes') AS i)
                        IS NOT DISTINCT FROM
                        (SELECT pg_catalog.jsonb_agg(i - 'number') FROM pg_catalog.jsonb_array_elements(new -> 'indexes') AS i)
                )) THEN
                    about := about || '{{"base": true}}';
                ELSE
                    about := about || pg_catalog.jsonb_build_object(
                        'tag', 'ALTER TABLE', 'relation', each::bigint, 'before', old, 'is_known', false,
                        'gone', '[]'::jsonb, 'rewritten', 0, 'older', '{{}}'::jsonb, 'query', '{_MISSED}', 'is_nested', false,
                        'user', session_user, 'role', pg_catalog.current_setting('role'), 'entry', entry.oid::bigint,
                        'version', pg_catalog.current_setting('server_version_num')::integer / 10000);
                END IF;
                INSERT INTO headrace_ddl.log (relation, parts, snapshot, content) VALUES (
                    each,
                    ARRAY(SELECT pg_catalog.unnest(ARRAY[i ->> 'number', pg_catalog.concat_ws('.', new ->> 'owner', i ->> 'name')])
                          FROM pg_catalog.jsonb_array_elements(new -> 'indexes') AS i),
                    now_seen, about::text);
            END IF;
        END IF;
        COMMIT;
    END LOOP;
    INSERT INTO headrace_ddl.compared SELECT entry.prpubid, entry.oid, seen WHERE entry.oid IS NOT NULL
    ON CONFLICT ON CONSTRAINT compared_pkey DO UPDATE SET entry = excluded.entry, snapshot = excluded.snapshot;
END $body$;
"""
