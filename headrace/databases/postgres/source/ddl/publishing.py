"""SQL with which a source publishes a new table in the statement that makes it.

Job
    Where a rule with `ddl: true` takes a new table, `publish` adds it to the topology's publication before its first row
    can exist, so every row is in the log. `note` (`objects`) calls it, and writes what it returns into the table's
    creation record: the identities under which the topologies know the table (`captured_tables`), or why it is not
    published, in which case it is a table that was created after `up`.

Tables
    `rule` has the rules of each publication, as patterns of LIKE (`rules` writes them). A rule set takes a table if a
    positive row matches and no negative one does. They count only while the publication names the log.
    `made` has the entries of publications that were made here.

No statement of a user fails or waits for long
    ALTER PUBLICATION holds a lock on the publication until the user's transaction ends. A session that waited for it could
    be what the holder waits for, and the server would end one of the two. So `publish` first tries for a lock on `made`,
    without waiting in the server, and gives up when `lock_timeout` is over, or a part of what the session itself allows.
    A table without a usable key gets REPLICA IDENTITY FULL from `note`, else users could not update its rows; so does one
    of `made` that loses its key.
"""

from __future__ import annotations

__all__ = ["GUARDED", "HAS_KEY", "LOST_KEY", "PUBLISH", "TABLES"]

GUARDED = ("log", "compared", "made", "rule")
"""Tables of the schema headrace_ddl, which only its owner may write."""

_POLL_S = 0.005  # many times shorter than the transactions that it waits for

TABLES = """
DO $do$ BEGIN
    IF pg_catalog.to_regclass('headrace_ddl.rule') IS NULL THEN
        CREATE TABLE headrace_ddl.rule (
            publication name NOT NULL,
            number integer NOT NULL,
            topology text NOT NULL,
            rule_set integer NOT NULL,
            is_positive boolean NOT NULL,
            owner_like text NOT NULL,
            name_like text NOT NULL,
            PRIMARY KEY (publication, number)
        );
    END IF;
    IF pg_catalog.to_regclass('headrace_ddl.made') IS NULL THEN
        CREATE TABLE headrace_ddl.made (entry oid PRIMARY KEY, relation oid NOT NULL, publication name NOT NULL);
    END IF;
END $do$;
"""

HAS_KEY = """EXISTS (SELECT FROM pg_index i WHERE i.indrelid = {relation} AND i.indisprimary AND i.indimmediate
                AND i.indisvalid)"""
"""Whether a table has a key that identifies its rows in the log."""

LOST_KEY = f"""EXISTS (
            SELECT FROM pg_class c JOIN pg_publication_rel x ON x.prrelid = c.oid JOIN headrace_ddl.made m ON m.entry = x.oid
            WHERE c.oid = each.relation AND c.relreplident = 'd')
            AND NOT {HAS_KEY.format(relation="each.relation")}"""
"""Whether a table that was published here can no longer be updated by users."""

# A function that may do anything would do so at the destination, too. It is refused here, because a table that is not
# published holds nothing up there.
_CALLING = """(
            SELECT format('the %s %s calls a function that may do anything at the destination', part.kind, part.name)
            FROM (SELECT 'column', c ->> 'name' FROM jsonb_array_elements(structure -> 'columns') AS c WHERE (c ->> 'calls')::boolean
                  UNION ALL SELECT 'constraint', k ->> 'name' FROM jsonb_array_elements(structure -> 'constraints') AS k
                  WHERE (k ->> 'calls')::boolean AND k ->> 'type' <> 'f'
                  UNION ALL SELECT 'index', i ->> 'name' FROM jsonb_array_elements(structure -> 'indexes') AS i
                  WHERE (i ->> 'calls')::boolean) AS part (kind, name)
            LIMIT 1)"""

_GENERATED_KEY = """EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
                     WHERE i.indrelid = made_table AND i.indisprimary AND a.attgenerated <> '')"""

# Kind i: of an identity column; a: owned by a column, as of type serial.
_SEQUENCES = """coalesce((
            SELECT jsonb_object_agg(a.attname, jsonb_build_object(
                'owner', n.nspname, 'name', s.relname, 'type', format_type(q.seqtypid, NULL), 'start', q.seqstart,
                'increment', q.seqincrement, 'min', q.seqmin, 'max', q.seqmax, 'cache', q.seqcache, 'cycle', q.seqcycle,
                'kind', p.deptype::text))
            FROM pg_depend p JOIN pg_class s ON s.oid = p.objid AND s.relkind = 'S' JOIN pg_namespace n ON n.oid = s.relnamespace
            JOIN pg_sequence q ON q.seqrelid = s.oid
            JOIN pg_attribute a ON a.attrelid = p.refobjid AND a.attnum = p.refobjsubid
            WHERE p.classid = 'pg_class'::regclass AND p.refclassid = 'pg_class'::regclass AND p.refobjid = made_table
              AND p.deptype IN ('a', 'i')), '{}')"""

# NULL: no rule takes it. Under SERIALIZABLE only `rule` is read, which no such transaction writes. An error leaves
# nothing: `note` catches it outside of the savepoint.
PUBLISH = f"""
CREATE OR REPLACE FUNCTION headrace_ddl.publish(made_table oid, structure jsonb) RETURNS jsonb LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    takers jsonb;
    taker record;
    why_not text;
    given text;
    patience interval;
    give_up timestamptz;
    is_alone boolean := false;
    made_entry oid;
    identity text;
    identities jsonb := '{{}}';
BEGIN
    SELECT jsonb_agg(DISTINCT jsonb_build_object('publication', t.publication, 'topology', t.topology)) INTO takers
    FROM (SELECT r.publication, r.topology
          FROM headrace_ddl.rule r
          CROSS JOIN LATERAL (SELECT structure ->> 'owner' LIKE r.owner_like AND structure ->> 'name' LIKE r.name_like) AS m (is_met)
          WHERE EXISTS (SELECT FROM pg_publication p JOIN pg_publication_rel x ON x.prpubid = p.oid
                        WHERE p.pubname = r.publication AND x.prrelid = 'headrace_ddl.log'::regclass)
          GROUP BY r.publication, r.topology, r.rule_set
          HAVING bool_or(r.is_positive AND m.is_met) AND NOT bool_or(NOT r.is_positive AND m.is_met)) AS t;
    IF takers IS NULL THEN
        RETURN NULL;
    END IF;
    why_not := CASE
        WHEN current_setting('transaction_isolation') = 'serializable' THEN 'transactions that are SERIALIZABLE do not publish'
        WHEN structure ->> 'kind' <> 'r' OR (structure ->> 'is_partition')::boolean THEN 'it is a partitioned table or a partition'
        WHEN (structure ->> 'parents')::integer + (structure ->> 'children')::integer > 0 THEN 'it inherits'
        WHEN structure ->> 'persistence' <> 'p' THEN 'it is unlogged'
        WHEN pg_relation_size(made_table) > 0 THEN
            'it was made with rows, which are not in the log (CREATE TABLE AS, SELECT INTO)'
        WHEN {_GENERATED_KEY} THEN 'its key has generated columns'
        WHEN NOT {HAS_KEY.format(relation="made_table")}
            AND jsonb_path_exists(structure, '$.columns[*].generated ? (@ != "")') THEN
            'it has generated columns and no primary key: users'' UPDATE would fail'
        ELSE {_CALLING} END;
    IF why_not IS NOT NULL THEN
        RETURN jsonb_build_object('identities', identities, 'why_not', why_not, 'sequences', identities);
    END IF;
    -- A session whose own time is up is cancelled, and then its statement fails. LEAST leaves out a NULL: no limit.
    given := current_setting('lock_timeout');
    patience := greatest('0', least(
        given::interval,
        (nullif(current_setting('statement_timeout')::interval, '0') - (clock_timestamp() - statement_timestamp())) / 4,
        (nullif(current_setting('transaction_timeout', true)::interval, '0') - (clock_timestamp() - now())) / 4));
    FOR taker IN SELECT t ->> 'publication' AS publication, t ->> 'topology' AS topology FROM jsonb_array_elements(takers) AS t LOOP
        give_up := clock_timestamp() + patience;
        WHILE NOT is_alone LOOP
            BEGIN
                LOCK TABLE headrace_ddl.made IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
                is_alone := true;
            EXCEPTION WHEN lock_not_available THEN
                IF clock_timestamp() >= give_up THEN
                    RAISE lock_not_available USING MESSAGE = 'another transaction that made a table has not ended';
                END IF;
                PERFORM pg_sleep({_POLL_S});
            END;
        END LOOP;
        PERFORM set_config('lock_timeout', format('%sms', greatest(1, extract(epoch FROM patience) * 1000)::integer), true);
        EXECUTE format('ALTER PUBLICATION %I ADD TABLE ONLY %s', taker.publication, made_table::regclass);
        PERFORM set_config('lock_timeout', given, true);
        SELECT x.oid, format('%s.%s.%s.%s', s.system_identifier, d.oid, x.prrelid::oid, x.oid) INTO STRICT made_entry, identity
        FROM pg_control_system() s JOIN pg_database d ON d.datname = current_database()
        JOIN pg_publication p ON p.pubname = taker.publication
        JOIN pg_publication_rel x ON x.prpubid = p.oid AND x.prrelid = made_table;
        -- an entry that is gone may have had the number
        INSERT INTO headrace_ddl.made (entry, relation, publication) VALUES (made_entry, made_table, taker.publication)
        ON CONFLICT (entry) DO UPDATE SET relation = excluded.relation, publication = excluded.publication;
        identities := identities || jsonb_build_object(taker.topology, identity);
    END LOOP;
    RETURN jsonb_build_object('identities', identities, 'why_not', '', 'sequences', {_SEQUENCES});
END $body$;
"""
