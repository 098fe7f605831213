"""SQL of the objects with which a source records DDL, all of them in the schema headrace_ddl.

Job
    Event triggers write a record into the table `headrace_ddl.log` for every table whose structure a statement changed,
    in the statement's transaction. The publication names this table, so the log stream has the record at the
    statement's place among the rows.

Main path
    user's DDL -> headrace_ddl_rewrite (note_rewrite) while a table is rewritten -> headrace_ddl_drop, headrace_ddl_end
    (note) when the statement is done -> structure_of -> of a new table: publish (`publishing`) -> a row of
    headrace_ddl.log.

What users may rely on
    No statement fails because of these objects: `note` catches every error, and leaves a record that the effect is
    unknown, or a line in the server's log. No statement waits for more than `_WAIT` in one call of `note`, of which a
    statement has two at most. Under SERIALIZABLE `note` reads nothing: what it read could make the server abort one of
    two transactions, and then it does not know the structure before.

Who may write
    Only the owner, a superuser. The schema is closed to others, and a trigger refuses members of `pg_write_all_data`,
    who may use every schema: a forged record would be DDL at the destinations.

Records (format 1; `headrace.lcr.ddl` reads them)
    `relation` and `parts` find the last record of a table: by its number, or by the number or the name of an index that
    was dropped. `content` is of type text, because then it has the same bytes in both forms of the stream.

Before a statement
    The table before it is that of its last record, which every earlier statement of the table must be in. So a record
    has its transaction and the snapshot in which the table was read: if a record of another transaction is not visible
    in the last one's snapshot, the two overlapped, and the structure before is not known (`is_known`). The same is true
    if the table was written anew since the last record without a record of that: then nobody knows which values its
    rows have in columns that the last record lacks, or has with another type.

Which records stay
    The last one of each table, and those that no later one sees (`headrace.databases.postgres.source.ddl.trimming`).

What `up` has compared
    `compared` has one row for each publication that names the log: the entry of the log in it, and a snapshot. Statements
    that could not be recorded (`relation` is 0), and are visible in the snapshot, had committed before `watch` compared
    the tables. If the log has another entry now, it was taken out in between, and records that the snapshot does not see
    may have been published to nobody.
"""

from __future__ import annotations

from headrace.databases.postgres.ddl.structure_query import KEPT_VALUE, PRINTED_WITH, STRUCTURE
from headrace.databases.postgres.source.ddl.publishing import GUARDED, HAS_KEY, LOST_KEY, PUBLISH, TABLES
from headrace.databases.postgres.source.ddl.references import NEEDED_BY_KEYS, REFERENCES
from headrace.databases.postgres.source.ddl.rewriting import NOTE_REWRITE, REWRITING, SINCE_REWRITING
from headrace.databases.postgres.source.ddl.watching import WATCH
from headrace.lcr.ddl import DDL_LOG

__all__ = ["EVENT_TRIGGERS", "INSTALL", "LOG", "REMOVE", "ROUTINES", "SCHEMA", "VERSION"]

SCHEMA, LOG = DDL_LOG
VERSION = 3
"""Of these texts: `up` replaces older ones. A newer version of Headrace leaves none older than its own."""
EVENT_TRIGGERS = ("headrace_ddl_drop", "headrace_ddl_end", "headrace_ddl_rewrite")
ROUTINES = ("note", "note_rewrite", "refuse", "structure_of", "watch")
"""Without them nothing is recorded; without `publish`, new tables are recorded and not published."""

# `note` runs twice in ALTER TABLE ... DROP COLUMN: together these stay below a second.
_WAIT = "300ms"
_NO_WAIT = "1ms"  # the least that the server takes
# For our own locks on the log: shorter than `_WAIT`, so that statements queued behind us are still recorded.
_OWN_WAIT = "150ms"
_REMOVAL_WAIT = "5s"  # for users' statements to end
_LEVELS_MAX = 100  # tables whose types are nested in one another; an end for names that were exchanged
_QUERY_MAX = 65536  # characters of a client's statement; more is a script, of which the beginning is enough

# The definitions and the values of a record, as the destination prints its own.
_PRINTED = " ".join(
    f"SET {name} = {value}" if name == "search_path" else f"SET \"{name}\" = '{value}'"
    for name, value in PRINTED_WITH.items()
)
# A plan is kept for the session, in which a migration may make thousands of tables: one that reads whole catalogs, because
# they were small, would become slow.
_PLANNED = "SET enable_seqscan = off SET enable_indexscan = on SET enable_nestloop = on SET jit = off"
# The others keep a user's settings from having an effect inside the function.
_SETTINGS = (
    f"{_PRINTED} {_PLANNED} SET lock_timeout = '{_WAIT}' SET array_nulls = on SET transform_null_equals = off SET"
    " row_security = off"
)

_HAS_KEY = HAS_KEY.format(relation="each.relation")

# Each only where it is missing: CREATE INDEX IF NOT EXISTS waits for every open transaction with DDL, too.
_TABLE = f"""
DO $do$ BEGIN
    IF pg_catalog.to_regclass('headrace_ddl.log') IS NULL THEN
        CREATE TABLE headrace_ddl.log (
            number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            relation oid NOT NULL,
            parts text[] NOT NULL,
            at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
            xid xid8 NOT NULL DEFAULT pg_catalog.pg_current_xact_id(),
            snapshot pg_snapshot NOT NULL DEFAULT pg_catalog.pg_current_snapshot(),
            content text NOT NULL
        );
    END IF;
    IF pg_catalog.to_regclass('headrace_ddl.compared') IS NULL THEN
        CREATE TABLE headrace_ddl.compared (
            publication oid PRIMARY KEY,
            entry oid NOT NULL,
            snapshot pg_snapshot NOT NULL
        );
    END IF;
    IF pg_catalog.to_regclass('headrace_ddl.log_relation') IS NULL THEN
        CREATE INDEX log_relation ON headrace_ddl.log (relation, number);
    END IF;
    IF pg_catalog.to_regclass('headrace_ddl.log_xid') IS NULL THEN
        CREATE INDEX log_xid ON headrace_ddl.log (relation, xid);
    END IF;
    IF pg_catalog.to_regclass('headrace_ddl.log_parts') IS NULL THEN
        CREATE INDEX log_parts ON headrace_ddl.log USING gin (parts) WITH (fastupdate = off);
    END IF;
END $do$;
COMMENT ON SCHEMA headrace_ddl IS 'headrace {VERSION}';
"""

# Not in SQL, which is planned anew in each call, and takes milliseconds for that. VOLATILE: a STABLE function takes the
# snapshot of its caller, and at the end of CREATE INDEX CONCURRENTLY there is none.
_STRUCTURE_OF = f"""
CREATE OR REPLACE FUNCTION headrace_ddl.structure_of(oid) RETURNS jsonb LANGUAGE plpgsql VOLATILE
{_PRINTED} {_PLANNED} AS $body$ BEGIN RETURN ({STRUCTURE}); END $body$;
"""

# The trigger function runs as the role that writes: inside `note` that is its owner.
_REFUSE = f"""
CREATE OR REPLACE FUNCTION headrace_ddl.refuse() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    IF NOT pg_has_role((SELECT c.relowner FROM pg_class c WHERE c.oid = tg_relid), 'USAGE') THEN
        RAISE insufficient_privilege USING MESSAGE = 'headrace_ddl is written by headrace up and event triggers alone';
    END IF;
    RETURN NULL;
END $body$;
DO $do$
DECLARE guarded text;
BEGIN
    FOREACH guarded IN ARRAY '{{{",".join(GUARDED)}}}'::text[] LOOP
        -- only where it is missing: it takes a lock that waits for every open transaction with DDL
        CONTINUE WHEN EXISTS (
            SELECT FROM pg_catalog.pg_trigger t
            WHERE t.tgrelid = pg_catalog.concat('headrace_ddl.', guarded)::pg_catalog.regclass AND t.tgname = 'refuse'
              AND t.tgenabled = 'A');
        EXECUTE pg_catalog.format('CREATE OR REPLACE TRIGGER refuse BEFORE INSERT OR UPDATE OR DELETE ON headrace_ddl.%s'
                       ' FOR EACH STATEMENT EXECUTE FUNCTION headrace_ddl.refuse()', guarded);
        EXECUTE pg_catalog.format('ALTER TABLE headrace_ddl.%s ENABLE ALWAYS TRIGGER refuse', guarded);
    END LOOP;
END $do$;
"""

# The first firing of a statement records all that it did, so that the second one finds nothing new. Constraints and
# defaults have their table's name in their address; an index has not, and its catalog rows are gone.
#
# The last record is read before the structure, so everything in it is in the structure. The snapshot is taken in between:
# the structure may have more than that, never less.
#
# TRUNCATE, VACUUM FULL, CLUSTER and SET TABLESPACE give a table another file, too, and fire no trigger. So a column that
# is added after them is not replicated until the next record, unless the table is empty: after a TRUNCATE in the same
# transaction, for example.
_NOTE = f"""
CREATE OR REPLACE FUNCTION headrace_ddl.note() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER
{_SETTINGS} AS $body$
DECLARE
    caller text;
    query text;
    content jsonb;
    indexes text[];
    made jsonb;
    is_recorded boolean;
    is_readable boolean;
    rewrites text;
    touched jsonb;
    each record;
    latest record;
    old jsonb;
    new jsonb;
    seen pg_snapshot;
    file bigint;
    is_known boolean;
    is_behind boolean;
    is_unread boolean;
    reasons integer;
    rewritten_from bigint;
    state text;
BEGIN
    GET DIAGNOSTICS caller = PG_CONTEXT;  -- one line: the client's own statement; more: a function or DO ran it
    query := left(coalesce(current_query(), ''), {_QUERY_MAX});
    IF getdatabaseencoding() <> 'UTF8' THEN
        query := regexp_replace(query, '[^\\u0001-\\u007f]', '?', 'g');  -- else the log could become unreadable
    END IF;
    is_readable := current_setting('transaction_isolation') <> 'serializable';
    rewrites := coalesce(current_setting('headrace_ddl.rewritten', true), '');
    IF tg_event = 'sql_drop' THEN
        IF NOT EXISTS (SELECT FROM pg_event_trigger_dropped_objects() d WHERE NOT d.is_temporary
                       AND d.object_type IN ('table', 'table column', 'index', 'table constraint', 'default value')) THEN
            RETURN;
        END IF;
        IF NOT is_readable AND tg_tag = 'DROP INDEX' THEN
            RAISE feature_not_supported USING MESSAGE = 'nothing is read under SERIALIZABLE';
        END IF;
        WITH RECURSIVE dropped AS MATERIALIZED (
            SELECT d.object_type AS kind, d.objid, d.address_names AS names,
                   d.address_names[array_upper(d.address_names, 1)] AS name
            FROM pg_event_trigger_dropped_objects() d
            WHERE NOT d.is_temporary
              AND d.object_type IN ('table', 'table column', 'index', 'table constraint', 'default value')
        ), placed AS (
            SELECT d.kind, d.name, d.names, CASE
                WHEN d.kind IN ('table', 'table column') THEN d.objid
                WHEN d.kind <> 'index' THEN to_regclass(format('%I.%I', d.names[1], d.names[2]))::oid
                WHEN is_readable THEN (
                    -- materialized: else the newest records might be read until one fits
                    WITH found AS MATERIALIZED (
                        SELECT l.relation, l.number, l.parts @> ARRAY[d.objid::text] AS is_exact FROM headrace_ddl.log l
                        WHERE l.parts && ARRAY[d.objid::text, concat_ws('.', d.names[1], d.name)]
                    )
                    SELECT f.relation FROM found f ORDER BY f.is_exact DESC, f.number DESC LIMIT 1)
                END AS relation
            FROM dropped d
        ), numbers AS MATERIALIZED (  -- of dropped tables by the names of their types; joins could be planned badly
            SELECT jsonb_object_agg(format('%I.%I', p.names[1], p.names[2]), p.relation::int8) AS of
            FROM placed p WHERE p.kind = 'table'
        ), needs AS MATERIALIZED (
            -- tables with columns of these types, by their last records: their catalog rows are gone, and the server's list
            -- says what was dropped, not why
            SELECT l.relation, (n.of ->> rtrim(type #>> '{{}}', '[]'))::int8::oid AS needed
            FROM numbers n
            CROSS JOIN (SELECT DISTINCT p.relation FROM placed p WHERE p.relation IS NOT NULL) p
            CROSS JOIN LATERAL (SELECT l.relation, l.content FROM headrace_ddl.log l
                                WHERE l.relation = p.relation ORDER BY l.number DESC LIMIT 1) l
            CROSS JOIN LATERAL jsonb_path_query(l.content::jsonb, '$.after.columns[*].type') AS type
            WHERE is_readable AND (SELECT count(DISTINCT p.relation) FROM placed p) > 1 AND n.of ? rtrim(type #>> '{{}}', '[]')
            {NEEDED_BY_KEYS}
        ), levels AS (
            SELECT n.needed, 1 AS level FROM needs n
            UNION SELECT n.needed, l.level + 1 FROM levels l JOIN needs n ON n.relation = l.needed
            WHERE l.level < {_LEVELS_MAX}
        ), level AS MATERIALIZED (
            SELECT jsonb_object_agg(l.needed, l.level) AS of
            FROM (SELECT l.needed, max(l.level) AS level FROM levels l GROUP BY l.needed) l
        )
        -- what depends on a table goes before it; unknown: newer tables first
        SELECT jsonb_agg(jsonb_build_object('relation', p.relation::int8, 'is_new', false, 'gone', p.gone, 'named', p.named)
                         ORDER BY p.level, p.relation DESC) INTO touched
        FROM (SELECT p.relation, jsonb_agg(jsonb_build_object('kind', p.kind, 'name', p.name) ORDER BY p.kind, p.name) AS gone,
                     (array_agg(to_jsonb(p.names)) FILTER (WHERE p.kind = 'table'))[1] AS named,
                     coalesce(((SELECT l.of FROM level l) ->> p.relation::text)::integer, 0) AS level
              FROM placed p WHERE p.relation IS NOT NULL GROUP BY p.relation) p;
    ELSE
        IF NOT EXISTS (SELECT FROM pg_event_trigger_ddl_commands() c
                       WHERE NOT c.in_extension AND c.schema_name IS DISTINCT FROM 'pg_temp') THEN
            RETURN;
        END IF;
        WITH RECURSIVE named AS (
            SELECT CASE WHEN c.classid = 'pg_class'::regclass THEN coalesce(i.indrelid, c.objid) ELSE k.conrelid END AS relation,
                   c.command_tag IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO') AS is_new
            FROM pg_event_trigger_ddl_commands() c
            LEFT JOIN pg_index i ON c.classid = 'pg_class'::regclass AND i.indexrelid = c.objid
            LEFT JOIN pg_constraint k ON c.classid = 'pg_constraint'::regclass AND k.oid = c.objid
            WHERE NOT c.in_extension
        ), below AS (
            -- ALTER TABLE changes children, too, and does not list them
            SELECT n.relation FROM named n JOIN pg_class c ON c.oid = n.relation
            WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
            UNION SELECT i.inhrelid FROM below b JOIN pg_inherits i ON i.inhparent = b.relation
        )
        SELECT jsonb_agg(jsonb_build_object('relation', b.relation::int8, 'gone', '[]'::jsonb,
                   'is_new', EXISTS (SELECT FROM named n WHERE n.relation = b.relation AND n.is_new))) INTO touched
        FROM below b;
    END IF;
    FOR each IN SELECT (t ->> 'relation')::oid AS relation, (t ->> 'is_new')::boolean AS is_new, t -> 'gone' AS gone,
                       t -> 'named' ->> 0 AS dropped_owner, t -> 'named' ->> 1 AS dropped_name
                FROM jsonb_array_elements(touched) AS t LOOP
        old := NULL;
        is_known := each.is_new;
        is_behind := false;
        IF is_readable AND NOT each.is_new THEN
            SELECT l.xid, l.snapshot, l.content::jsonb AS content INTO latest FROM headrace_ddl.log l
            WHERE l.relation = each.relation ORDER BY l.number DESC LIMIT 1;
            is_known := FOUND;
            old := nullif(latest.content -> 'after', 'null');
            -- two ranges of an index: neither has the records of the last one's transaction, which can be many
            is_behind := is_known AND (
                EXISTS (SELECT FROM headrace_ddl.log l
                        WHERE l.relation = each.relation AND l.xid >= pg_snapshot_xmin(latest.snapshot)
                          AND l.xid < latest.xid AND NOT pg_visible_in_snapshot(l.xid, latest.snapshot))
                OR EXISTS (SELECT FROM headrace_ddl.log l
                           WHERE l.relation = each.relation AND l.xid > latest.xid
                             AND NOT pg_visible_in_snapshot(l.xid, latest.snapshot)));
        END IF;
        SELECT pg_current_snapshot() INTO seen;
        new := headrace_ddl.structure_of(each.relation);
        CONTINUE WHEN new IS NULL AND tg_event <> 'sql_drop';  -- one of ours
        IF jsonb_path_exists(new, '$.*[*].definition ? (@ == null)') THEN
            -- an old snapshot shows an index or a constraint that another transaction has dropped since
            RAISE object_not_in_prerequisite_state USING MESSAGE = 'the table changed behind the snapshot';
        END IF;
        {REWRITING}
        is_unread := NOT is_readable AND each.dropped_owner !~ '^(pg_.*|information_schema|headrace|headrace_ddl)$';
        CONTINUE WHEN reasons = 0 AND old - 'role' IS NOT DISTINCT FROM new - 'role' AND (new IS NULL OR NOT is_behind)
            AND is_unread IS NOT TRUE;
        file := pg_relation_filenode(each.relation);
        is_known := is_known AND NOT is_behind;
        IF old IS NOT NULL THEN
            is_known := is_known AND NOT (
                reasons = 0 AND (latest.content ->> 'file')::bigint IS DISTINCT FROM file
                AND pg_relation_size(each.relation) > 0
                AND EXISTS (SELECT FROM jsonb_array_elements(new -> 'columns') AS n WHERE NOT EXISTS (
                    SELECT FROM jsonb_array_elements(old -> 'columns') AS o
                    WHERE o -> 'number' = n -> 'number' AND o -> 'type' = n -> 'type')));
        END IF;
        IF is_unread THEN  -- only its name and its number are known, which is enough for a table that is gone
            old := jsonb_build_object('owner', each.dropped_owner, 'name', each.dropped_name, 'kind', 'r', 'persistence', 'p',
                'role', '', 'is_partition', false, 'parents', 0, 'children', 0, 'columns', '[]'::jsonb,
                'constraints', '[]'::jsonb, 'indexes', '[]'::jsonb);
        END IF;
        IF reasons <> 0 THEN
            rewrites := regexp_replace(rewrites, format(' %s:[0-9]+(?::[0-9]+)?', each.relation), '', 'g');
            PERFORM set_config('headrace_ddl.rewritten', rewrites, true);
        END IF;
        content := jsonb_build_object(
            'format', 1, 'tag', tg_tag, 'relation', each.relation::int8, 'before', old, 'is_known', is_known,
            'after', new, 'gone', each.gone, 'rewritten', reasons, 'file', file,
            'rewriting', CASE WHEN reasons <> 0 THEN {SINCE_REWRITING} END,
            'references', {REFERENCES.format(relation="each.relation")},
            -- what rows from before have in new columns
            'older', (SELECT coalesce(jsonb_object_agg(a.attname, {KEPT_VALUE}), '{{}}')
                      FROM pg_attribute a
                      WHERE a.attrelid = each.relation AND a.attnum > 0 AND NOT a.attisdropped AND a.atthasmissing
                        AND NOT EXISTS (SELECT FROM jsonb_array_elements(old -> 'columns') AS o
                                        WHERE (o ->> 'number')::integer = a.attnum)),
            'query', query, 'is_nested', strpos(caller, E'\\n') > 0,
            'user', session_user, 'role', current_setting('role'),
            'version', current_setting('server_version_num')::integer / 10000);
        PERFORM convert_to(content::text, 'UTF8');  -- fails where a name cannot be sent
        indexes := ARRAY(SELECT unnest(ARRAY[i ->> 'number', concat_ws('.', new ->> 'owner', i ->> 'name')])
                         FROM jsonb_array_elements(new -> 'indexes') AS i);
        is_recorded := false;
        IF each.is_new THEN
            BEGIN
                made := headrace_ddl.publish(each.relation, new);
                content := content || CASE WHEN made IS NULL THEN '{{}}' ELSE jsonb_build_object('made', made) END;
                PERFORM convert_to(content::text, 'UTF8');
                INSERT INTO headrace_ddl.log (relation, parts, snapshot, content)
                VALUES (each.relation, indexes, seen, content::text);
                -- behind the record, which the triggers of this statement compare with
                IF made -> 'identities' <> '{{}}' AND NOT {_HAS_KEY} THEN
                    EXECUTE format('ALTER TABLE ONLY %s REPLICA IDENTITY FULL', each.relation::regclass);
                END IF;
                is_recorded := true;
            EXCEPTION WHEN OTHERS THEN  -- the table is out of the publication again
                GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE;
                IF state = '55P03' THEN
                    PERFORM set_config('lock_timeout', '{_NO_WAIT}', true);
                END IF;
                content := content || jsonb_build_object('made', jsonb_build_object(
                    'identities', '{{}}'::jsonb, 'sequences', '{{}}'::jsonb,
                    -- the message is in the server's language, and in another encoding perhaps
                    'why_not', format('it could not be published: %s (%s)',
                                      regexp_replace(SQLERRM, '[^\\u0001-\\u007f]', '?', 'g'), state)));
            END;
        END IF;
        IF NOT is_recorded THEN
            INSERT INTO headrace_ddl.log (relation, parts, snapshot, content)
            VALUES (each.relation, indexes, seen, content::text);
        END IF;
        BEGIN  -- behind the record, too
            IF NOT each.is_new AND {LOST_KEY} THEN
                EXECUTE format('ALTER TABLE ONLY %s REPLICA IDENTITY FULL', each.relation::regclass);
            END IF;
        EXCEPTION WHEN OTHERS THEN
            RAISE LOG 'headrace: users may not be able to update %: %', each.relation::regclass, SQLERRM;
        END;
    END LOOP;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE;
    RAISE LOG 'headrace: the effect of % was not recorded: % (%)', tg_tag, SQLERRM, state;
    IF state = '55P03' THEN  -- the log is locked, or the table: the user has waited long enough
        PERFORM set_config('lock_timeout', '{_NO_WAIT}', true);
    END IF;
    BEGIN
        INSERT INTO headrace_ddl.log (relation, parts, content) VALUES (0, '{{}}', jsonb_build_object('format', 1,
            'failed', state, 'tag', tg_tag, 'query', coalesce(query, ''))::text);
    EXCEPTION WHEN OTHERS THEN
        RAISE LOG 'headrace: nor was that recorded: %', SQLERRM;
    END;
END $body$;
"""

# Default privileges may have given others rights on new objects, and every function can be called by all at first.
_CLOSE = """
DO $do$
DECLARE grantee text;
BEGIN
    FOR grantee IN
        SELECT DISTINCT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
        FROM pg_namespace n
        CROSS JOIN LATERAL (
            SELECT n.nspowner, n.nspacl
            UNION ALL SELECT c.relowner, c.relacl FROM pg_class c WHERE c.relnamespace = n.oid
            UNION ALL SELECT p.proowner, coalesce(p.proacl, acldefault('f', p.proowner)) FROM pg_proc p WHERE p.pronamespace = n.oid
        ) AS object (owner, acl)
        CROSS JOIN LATERAL aclexplode(object.acl) AS a
        WHERE n.nspname = 'headrace_ddl' AND a.grantee <> object.owner
    LOOP
        EXECUTE format('REVOKE ALL ON SCHEMA headrace_ddl FROM %s CASCADE', grantee);
        EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA headrace_ddl FROM %s CASCADE', grantee);
        EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA headrace_ddl FROM %s CASCADE', grantee);
        EXECUTE format('REVOKE ALL ON ALL ROUTINES IN SCHEMA headrace_ddl FROM %s CASCADE', grantee);
    END LOOP;
END $do$;
"""

# ALTER VIEW, ALTER FOREIGN TABLE and the like rename columns of tables, too. ALWAYS: an apply server's sessions have
# session_replication_role = replica.
_TRIGGERS = """
DROP EVENT TRIGGER IF EXISTS headrace_ddl_drop;
DROP EVENT TRIGGER IF EXISTS headrace_ddl_end;
DROP EVENT TRIGGER IF EXISTS headrace_ddl_rewrite;
CREATE EVENT TRIGGER headrace_ddl_drop ON sql_drop EXECUTE FUNCTION headrace_ddl.note();
CREATE EVENT TRIGGER headrace_ddl_end ON ddl_command_end
    WHEN TAG IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO', 'CREATE SCHEMA', 'ALTER TABLE', 'CREATE INDEX', 'ALTER INDEX',
                 'ALTER VIEW', 'ALTER MATERIALIZED VIEW', 'ALTER FOREIGN TABLE', 'ALTER TYPE')
    EXECUTE FUNCTION headrace_ddl.note();
CREATE EVENT TRIGGER headrace_ddl_rewrite ON table_rewrite
    WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION headrace_ddl.note_rewrite();
ALTER EVENT TRIGGER headrace_ddl_drop ENABLE ALWAYS;
ALTER EVENT TRIGGER headrace_ddl_end ENABLE ALWAYS;
ALTER EVENT TRIGGER headrace_ddl_rewrite ENABLE ALWAYS;
"""

_WAIT_FOR_OURS = f"SELECT pg_catalog.set_config('lock_timeout', '{_OWN_WAIT}', true);"

INSTALL = (
    _WAIT_FOR_OURS
    + _TABLE
    + TABLES
    + _STRUCTURE_OF
    + _REFUSE
    + PUBLISH
    + NOTE_REWRITE
    + _NOTE
    + WATCH
    + _CLOSE
    + _TRIGGERS
)
"""Creates or replaces everything in the existing schema, in one transaction; idempotent."""

# A statement looks its event triggers up, and then calls their functions: with a function dropped in between it would
# fail. So the triggers go first, and the functions when the statements that were changing something then have ended.
# Another topology that begins to use the log meanwhile gets its triggers back, or finds no schema.
REMOVE = f"""
DO $do$
DECLARE
    began timestamptz;
    is_over boolean := false;
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_publication_rel r WHERE r.prrelid = pg_catalog.to_regclass('headrace_ddl.log')) THEN
        RETURN;
    END IF;
    DROP EVENT TRIGGER IF EXISTS headrace_ddl_drop;
    DROP EVENT TRIGGER IF EXISTS headrace_ddl_end;
    DROP EVENT TRIGGER IF EXISTS headrace_ddl_rewrite;
    COMMIT;
    began := pg_catalog.clock_timestamp();
    WHILE NOT is_over LOOP
        PERFORM pg_catalog.pg_stat_clear_snapshot();
        is_over := NOT EXISTS (
            SELECT FROM pg_catalog.pg_stat_activity a
            WHERE a.datname = pg_catalog.current_database() AND a.pid <> pg_catalog.pg_backend_pid()
              AND a.state = 'active' AND a.backend_xid IS NOT NULL AND a.query_start < began);
        IF NOT is_over AND pg_catalog.clock_timestamp() > began + interval '{_REMOVAL_WAIT}' THEN
            RAISE lock_not_available USING MESSAGE = 'statements that change something still run in this database';
        END IF;
        PERFORM pg_catalog.pg_sleep(CASE WHEN is_over THEN 0 ELSE 0.01 END);
    END LOOP;
    PERFORM pg_catalog.set_config('lock_timeout', '{_OWN_WAIT}', true);
    IF pg_catalog.to_regclass('headrace_ddl.log') IS NOT NULL THEN
        LOCK TABLE headrace_ddl.log IN ACCESS EXCLUSIVE MODE;
        IF EXISTS (SELECT FROM pg_catalog.pg_publication_rel r WHERE r.prrelid = pg_catalog.to_regclass('headrace_ddl.log')) THEN
            {_TRIGGERS}
            RETURN;
        END IF;
    END IF;
    DROP SCHEMA headrace_ddl CASCADE;
END $do$;
"""
"""Drops everything if no publication names the log; it has transactions of its own."""
