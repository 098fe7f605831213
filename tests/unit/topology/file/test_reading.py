"""Reading a topology file: its contents, and every problem of an invalid file with its exact text."""

from __future__ import annotations

import pickle

import pytest

from headrace.base.errors import ConfigError
from headrace.rules.rule import ANY_TAG, Rule, RuleSet, TagCondition
from tests.support.topologies.files import SITES, problems, read
from topology.edits.stored import spec_from_json, spec_to_json, without_secrets
from topology.file.reading import read_topology
from topology.problems import TopologyError

EXPLICIT = (
    SITES
    + """
queues:
  q_dbs1: {site: dbs1, memory: 64MB, spill: 2GB}
  q_dbs2: {site: dbs2}
captures:
  capture_hr: {site: dbs1, source: dbs1, queue: q_dbs1, rules: {include: [{schema: hr}]}}
propagations:
  dbs1_to_dbs2: {from: q_dbs1, to: q_dbs2}
applies:
  apply_from_dbs1: {site: dbs2, source: dbs1, queue: q_dbs2}
"""
)


def test_every_key_of_the_explicit_form_is_in_the_spec(tmp_path):
    spec = read(
        tmp_path,
        """
        topology: hr_one_way
        tls: none
        state_dir: state
        redo_bytes_max: 1GB
        segment_bytes: 8MB
        heartbeat_s: 2
        sites:
          dbs1: {database: {kind: postgres, dsn: "${DBS1}", decoding_memory: 256MB}}
          dbs2: {database: {kind: embedded, version: 16, decoding_memory: 4GB}, node: {site_dbs2: 1}, executors: 1}
        queues:
          q1: {site: dbs1, kind: buffered, memory: 64MB, spill: 2GB}
          q2: {site: dbs2}
        captures:
          c1:
            site: dbs1
            source: dbs1
            queue: q1
            rules:
              include: [{table: hr.employees, dml: true, ddl: false, tagged: true}, {schema: crm}, {global: true, tags: ["0b", null, "0B"]}]
              exclude: [{table: hr.audit_*}, {schema: tmp, tagged: false}, {schema: hr, not_tags: ["1d"]}]
        propagations:
          p1: {from: q1, to: q2, rules: {exclude: [{table: hr.salaries}]}}
        applies:
          a1: {site: dbs2, source: dbs1, queue: q2, tag: "1F", parallelism: 4, group_transactions: 1,
               group_rows: 500, commit_serialization: dependent_transactions, rules: {include: []}}
        """,
        {"DBS1": "postgresql://u@h/d"},
    )
    assert spec.name == "hr_one_way"
    assert spec.state_dir == tmp_path / "state"
    assert (spec.redo_bytes_max, spec.segment_bytes, spec.heartbeat_s) == (1 << 30, 8 << 20, 2.0)
    assert spec.site("dbs1").database.dsn == "postgresql://u@h/d"
    assert spec.site("dbs1").database.environment == ("DBS1",)
    assert spec.site("dbs2").database.version == 16
    assert [spec.site(name).database.decoding_memory for name in ("dbs1", "dbs2")] == [256 << 20, 4 << 30]
    assert spec.site("dbs2").node == (("site_dbs2", 1.0),)
    assert [spec.site(name).executors for name in ("dbs1", "dbs2")] == [2, 1]
    assert (spec.queue("q1").memory_bytes_max, spec.queue("q1").spill_bytes_max) == (64 << 20, 2 << 30)
    assert spec.capture("c1").rules == RuleSet(
        include=(
            Rule(owner="hr", name="employees", tags=ANY_TAG),
            Rule(owner="crm"),
            Rule(tags=TagCondition(listed=(None, b"\x0b"))),
        ),
        exclude=(
            Rule(owner="hr", name="audit_*", tags=ANY_TAG),
            Rule(owner="tmp"),
            Rule(owner="hr", tags=TagCondition(listed=(b"\x1d",), takes_listed=False)),
        ),
    )
    assert spec.propagation("p1").rules == RuleSet(exclude=(Rule(owner="hr", name="salaries", tags=ANY_TAG),))
    assert spec.propagation("p1").sources == ("dbs1",)
    apply = spec.apply("a1")
    assert (apply.tag, apply.parallelism, apply.group_transactions, apply.group_rows) == (b"\x1f", 4, 1, 500)
    assert apply.rules == RuleSet(include=())


def test_components_share_processes_unless_the_file_sets_apart(tmp_path):
    assert [
        read(tmp_path, text + EXPLICIT).processes_apart for text in ("", "processes: shared", "processes: apart")
    ] == [False, False, True]
    (found,) = problems(tmp_path, "processes: alone" + EXPLICIT)
    assert found == "processes (line 1): 'alone' is not one of shared, apart: write one of these"


def test_default_state_dir_is_next_to_the_file_and_named_by_the_topology(tmp_path):
    assert read(tmp_path, SITES).state_dir == tmp_path / ".headrace" / "t"


def test_dsn_is_absent_from_the_specs_representation(tmp_path):
    spec = read(
        tmp_path,
        'topology: t\nsites: {a: {database: {kind: postgres, dsn: "${A}"}}}',
        {"A": "postgresql://u:hunter2@h/d"},
    )
    assert "hunter2" in spec.site("a").database.dsn
    assert "hunter2" not in repr(spec)


def test_explicit_entry_replaces_the_generated_entry_of_its_name(tmp_path):
    spec = read(
        tmp_path,
        SITES
        + """
replicate: [{schemas: [hr], from: dbs1, to: [dbs2]}]
applies:
  apply_from_dbs1_at_dbs2: {site: dbs2, source: dbs1, queue: q_dbs2_in, parallelism: 7}
""",
    )
    assert [apply.parallelism for apply in spec.applies] == [7]
    assert [queue.name for queue in spec.queues] == ["q_dbs1", "q_dbs2_in"]


def test_propagations_of_an_explicit_capture_keep_the_shorthand_rules(tmp_path):
    spec = read(
        tmp_path,
        SITES
        + """
replicate: [{schemas: [hr], from: dbs1, to: [dbs2]}]
captures:
  capture_dbs1: {site: dbs1, source: dbs1, queue: q_dbs1, rules: {include: [{schema: hr}, {schema: crm}]}}
""",
    )
    assert spec.propagation("dbs1_to_dbs2").rules == RuleSet(include=(Rule(owner="hr", tags=ANY_TAG),))


def test_yaml_merge_keys_and_anchors_work(tmp_path):
    spec = read(
        tmp_path,
        """
        topology: t
        tls: none
        sites:
          dbs1: &embedded {database: {kind: embedded}}
          dbs2: {<<: *embedded, node: {site_dbs2: 1}}
        """,
    )
    assert spec.site("dbs2").database.kind == "embedded"


def test_error_lists_all_problems_in_the_order_of_the_file(tmp_path):
    text = """
        topology: My Topology
        sites:
          dbs1: {database: {kind: embeded}}
          dbs2: {database: {kind: embedded}}
        replicate:
          - {schemas: [hr], from: dbs2, to: [dbs9]}
          - {schemas: [hr], from: dbs1, to: [dbs2]}
        queus: {}
        """
    assert problems(tmp_path, text) == [
        "topology (line 1): 'My Topology' cannot be a name: write a-z, 0-9 and _, a letter first, at most 30"
        " characters",
        "sites.dbs1.database.kind (line 3): 'embeded' is not one of postgres, embedded, none: did you mean 'embedded'?",
        "replicate[0].to[0] (line 6): there is no site 'dbs9': did you mean 'dbs2'?",
        "queus (line 8): there is no such key: did you mean 'queues'?",
    ]


def test_topology_error_survives_pickling_with_its_findings(tmp_path):
    with pytest.raises(ConfigError, match="1 problem\n  topology: is missing: add it") as caught:
        read(tmp_path, "sites: {a: {database: {kind: embedded}}}")
    error = caught.value
    assert isinstance(error, TopologyError)
    again = pickle.loads(pickle.dumps(error))
    assert (again.args, again.findings, again.context) == (error.args, error.findings, error.context)
    assert error.context["problems"] == 1


def test_missing_file_is_reported_as_a_problem(tmp_path):
    with pytest.raises(TopologyError, match="file: no such file or directory: check the path"):
        read_topology(tmp_path / "none.yaml")


FILES = {
    "empty": ("", "file: is empty: begin with `topology: NAME` and `sites:`"),
    "list": ("- a", "file: is not a mapping of keys to values: begin with `topology: NAME` and `sites:`"),
    "broken": (
        "a: [1",
        "file (line 1): is not YAML: expected ',' or ']', but got '<stream end>': fix the line, or the one before",
    ),
    "python object": (
        "topology: !!python/object/apply:os.getcwd []",
        "topology (line 1): [] is not a text: write a word, in quotes if YAML reads it as something else",
    ),
}


@pytest.mark.parametrize(("text", "expected"), FILES.values(), ids=FILES.keys())
def test_invalid_topology_file_is_refused_with_the_line(tmp_path, text, expected):
    assert expected in problems(tmp_path, text)


def test_duplicate_key_is_reported_as_a_problem(tmp_path):
    text = "topology: t\nsites:\n  a: {database: {kind: none}}\n  a: {database: {kind: embedded}}"
    assert problems(tmp_path, text) == ["sites.a: is written twice, in lines 3 and 4: keep one of them"]


def test_endlessly_expanding_file_is_refused(tmp_path):
    bomb = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 20)}]" for n in range(1, 8))
    (problem,) = problems(tmp_path, f"a0: &a0 x\n{bomb}")
    assert problem == "file: is not YAML: it expands to more than 200000 values or 20 levels: save it as UTF-8 text"


def test_self_referencing_file_is_refused(tmp_path):
    assert "it expands to more than" in problems(tmp_path, "topology: &a [*a]")[0]


SITE_PROBLEMS = {
    "{}": "sites.x.database (line 3): is missing: add it",
    "7": "sites.x (line 3): 7 is not a mapping of keys to values: write {key: value}",
    "{database: {}}": "sites.x.database.kind (line 3): is missing: add it",
    "{database: {kind: mariadb}}": "sites.x.database.kind (line 3): 'mariadb' is known but not yet built: write one of"
    " postgres, embedded, none",
    "{database: {kind: postgres}}": "sites.x.database (line 3): has no dsn: give its connection string, such as dsn:"
    ' "${DBS1_DSN}"',
    "{database: {kind: embedded, dsn: host=h}}": "sites.x.database (line 3): kind: embedded takes no dsn: leave out"
    " dsn, or write kind: postgres",
    "{database: {kind: none, version: 18}}": "sites.x.database (line 3): kind: none takes no version: leave out version"
    " (it chooses the embedded server's)",
    "{database: {kind: embedded, allow_any_version: true}}": "sites.x.database (line 3): kind: embedded takes no"
    " allow_any_version: leave it out (it is for a server of your own)",
    "{database: {kind: none, decoding_memory: 1MB}}": "sites.x.database (line 3): kind: none takes no decoding_memory:"
    " leave it out (nothing is decoded here)",
    "{database: {kind: embedded, decoding_memory: 512kB}}": "sites.x.database.decoding_memory (line 3): '512kB' is too"
    " small: at least 1MB: one LCR batch must fit",
    "{database: {kind: embedded, decoding_memory: 5GB}}": "sites.x.database.decoding_memory (line 3): '5GB' is too"
    " large: at most 4GB: it is memory of the source's server, which spills larger transactions to its disk",
    "{database: {kind: embedded, decoding_memory: many}}": "sites.x.database.decoding_memory (line 3): 'many' is not a"
    " size: write bytes or a number with a unit, such as 256MB (1MB = 1024kB)",
    "{database: {kind: embedded, version: 17}}": "sites.x.database.version (line 3): 17 is not one of 16, 18: write one"
    " of these",
    "{database: {kind: embedded, versoin: 18}}": "sites.x.database.versoin (line 3): there is no such key: did you mean"
    " 'version'?",
    "{database: {kind: embedded}, node: {a: 0}}": "sites.x.node.a (line 3): 0 is out of range: write more than 0",
    "{database: {kind: embedded}, node: {a: one}}": "sites.x.node.a (line 3): 'one' is not a number: write a number,"
    " without quotes",
    "{database: {kind: postgres, dsn: '${NONE}'}}": "sites.x.database.dsn (line 3): the environment variable NONE is"
    " not set: export NONE=... before the command",
    "{database: {kind: postgres, dsn: 'postgresql://u:secret@h/d'}}": "sites.x.database.dsn (line 3): has a password in"
    " the file: move it out: write ${NAME} in its place and export NAME, or ${file:/path} or ${command:program}, or use"
    " a password file (~/.pgpass)",
}


@pytest.mark.parametrize(("site", "expected"), SITE_PROBLEMS.items(), ids=SITE_PROBLEMS.keys())
def test_invalid_site_is_reported_with_its_place(tmp_path, site, expected):
    assert problems(tmp_path, f"topology: t\nsites:\n  x: {site}") == [expected]


REPLICATE_PROBLEMS = {
    "{from: dbs1, to: [dbs2]}": ": does not say what to replicate: give schemas: [hr] or tables: [hr.*]",
    "{schemas: [hr]}": ": does not say where: give from: SITE and to: [SITE], between: [SITE, SITE], or hub: SITE and"
    " spokes: [SITE]",
    "{schemas: [hr], from: dbs1}": ": does not say where: give from: SITE and to: [SITE], between: [SITE, SITE], or"
    " hub: SITE and spokes: [SITE]",
    "{schemas: [hr], hub: dbs1}": ": does not say where: give from: SITE and to: [SITE], between: [SITE, SITE], or hub:"
    " SITE and spokes: [SITE]",
    "{schemas: [hr], between: [dbs1]}": ": between names fewer than two sites: name two or more",
    "{schemas: [hr], between: [dbs1, dbs2], to: [dbs3]}": ": has both between and from/to: keep one of them",
    "{schemas: [hr], between: [dbs1, dbs2], hub: dbs1, spokes: [dbs3]}": ": has both between and hub/spokes: keep one"
    " of them",
    "{schemas: [hr], hub: dbs1, spokes: [dbs2, dbs4]}": ".spokes[1]: there is no site 'dbs4': did you mean 'dbs3'?",
    "{schemas: [hr], hub: dbs1, spokes: [dbs2, dbs1]}": ".spokes[1]: dbs1 is in the tree of hub and spokes twice:"
    " name every site once",
    "{schemas: [hr], hub: dbs1, spokes: [{site: dbs2, spokes: [dbs3, dbs2]}]}": ".spokes[0].spokes[1]: dbs2 is in"
    " the tree of hub and spokes twice: name every site once",
    "{schemas: [hr], hub: dbs1, spokes: [{site: relay}]}": ".spokes[0].site: site relay has no database: name another"
    " site, or give relay a database of kind postgres or embedded",
    "{schemas: [hr], hub: dbs1, spokes: [{site: dbs2, spoke: [dbs3]}]}": ".spokes[0].spoke: there is no such key: did"
    " you mean 'spokes'?",
    "{schemas: [hr], hub: dbs1, spokes: [{spokes: [dbs3]}]}": ".spokes[0].site: is missing: add it",
    "{schemas: [hr], hub: dbs1, spokes: [7]}": ".spokes[0]: 7 is not a mapping of keys to values: write {key: value}",
    "{schemas: [hr], from: dbs1, to: [dbs2], ddl: 'yes'}": ".ddl: 'yes' is not true or false: write true or false",
    "{schemas: [hr], between: [dbs1, dbs2], ddl: true}": ": ddl: true goes one way so far, and this entry has between:"
    " leave out ddl, and run DDL at every site; or write from: SITE and to: [SITE]",
    "{schemas: [hr], from: dbs1, to: dbs2}": ".to: 'dbs2' is not a list: write [one, two]",
    "{schemas: [hr], from: dbs1, to: [dbs1]}": ".to[0]: replicates dbs1 to itself: name another site",
    "{schemas: [hr], from: dbs1, to: [relay]}": ".to[0]: site relay has no database: name another site, or give relay a"
    " database of kind postgres or embedded",
    "{schemas: [hr], from: dbs4, to: [dbs2]}": ".from: there is no site 'dbs4': did you mean 'dbs3'?",
    "{tables: [employees], from: dbs1, to: [dbs2]}": ".tables[0]: 'employees' is not of the form schema.table: write"
    " schema.table, such as hr.employees or hr.* "
    '(or "Odd.Name".t)',
    "{schemas: [hr.employees], from: dbs1, to: [dbs2]}": ".schemas[0]: 'hr.employees' is not the name of one schema:"
    " write a schema's name, such as hr (tables go under `tables` or `table`)",
    "{schemas: [hr], form: dbs1, from: dbs1, to: [dbs2]}": ".form: there is no such key: did you mean 'from'?",
}


@pytest.mark.parametrize(("entry", "expected"), REPLICATE_PROBLEMS.items(), ids=REPLICATE_PROBLEMS.keys())
def test_invalid_replicate_entry_is_reported_with_its_place(tmp_path, entry, expected):
    key, _, rest = expected.partition(":")
    found = problems(tmp_path, SITES + f"replicate:\n  - {entry}")
    assert found == [f"replicate[0]{key} (line 8):{rest}"]


RULE_PROBLEMS = {
    "{}": ": names no object, or more than one: write one of table, schema, global, or a condition that names it",
    "{table: hr.t, schema: hr}": ": names no object, or more than one: write one of table, schema, global, or a condition"
    " that names it",
    "{global: false}": ": global: false has no meaning: write global: true, or a table or schema",
    "{schema: hr, ddl: true}": ".ddl: ddl: true is for whole tables that go one way, and a rule can take a part of them:"
    " write it in an entry of replicate: {tables: [...], from: SITE, to: [SITE], ddl: true}",
    "{schema: hr, dml: false}": ": takes neither dml nor ddl: leave out dml: false, or the whole rule",
    "{schema: hr, tagged: 'no'}": ".tagged: 'no' is not true or false: write true or false",
    "{schema: hr, tagged: true, tags: ['00']}": ": says more than once which tags it takes: keep one of tagged, tags,"
    " not_tags",
    "{schema: hr, tags: ['00'], not_tags: [null]}": ": says more than once which tags it takes: keep one of tagged,"
    " tags, not_tags",
    "{schema: hr, tags: []}": """: lists no tag: list tags, such as [null, "11"], or write tagged: true for every tag""",
    "{schema: hr, tags: [11]}": """.tags[0]: 11 is not a text: put hexadecimal digits in quotes, such as "00" (YAML reads 00 as a number)""",
    "{schema: hr, not_tags: [null, '1']}": """.not_tags[1]: '1' is not hexadecimal: write pairs of hexadecimal digits, such as "00" or "1f\"""",
    "{schema: hr, tags: ['']}": """.tags[0]: the tag is empty: write null for no tag, or a tag, such as "00\"""",
    "{schema: hr, tags: '11'}": ".tags: '11' is not a list: write [one, two]",
    "{table: hr.t, where: 'new.a == 1'}": ".where: at '==' (character 7): cannot be a condition: SQL compares with =",
    "{table: hr.t, where: 'upper(a) = 1'}": ".where: 'UPPER(a)' (character 1) cannot be evaluated here: functions and"
    " other expressions are not evaluated as the source would; compare columns with values",
    "{table: hr.t, where: 5}": '.where: 5 is not a text: write a condition in SQL, in quotes, such as "department_id ='
    ' 50"',
    "{table: hr.t, where: 'a = 1', condition: 'tag is null'}": ": has where and condition: keep one: where takes"
    " lcr.ATTRIBUTE too, and condition takes new.COLUMN",
    "{table: hr.t, subset: 'new.a = 1'}": ".subset: new.a says whether the new or the old row is meant: write a: a"
    " subset is asked of both",
    "{table: hr.t, subset: 'lcr.tag is null'}": ".subset: tag is no column: a subset is of the table's rows: use where,"
    " or condition, for LCRs",
    "{schema: hr, subset: 'a = 1'}": ": has a subset and names more than one table: give each table a rule of its own",
    "{table: hr.t, subset: 'a = 1', where: 'a = 2'}": ": has a subset and another condition: keep one of them: what the"
    " condition discards would be missing when a row leaves the subset",
    "{table: hr.t, transform: []}": ".transform: [] is not a list of transformations: write a list, such as"
    ' [{delete_columns: [salary]}], or a function, such as "masks:mask"',
    "{condition: 'tga is null'}": ".condition: 'tga' (character 1) cannot be evaluated here: did you mean tag? An LCR"
    " has the attributes command_type, "
    "object_name, object_owner, scn, source_database_name, source_time, tag, transaction_id; a column is written"
    " new.tga or old.tga",
    "{tabel: hr.t}": ".tabel: there is no such key: did you mean 'table'?",
    "hr.t": ": 'hr.t' is not a mapping of keys to values: write {key: value}",
}


@pytest.mark.parametrize(("rule", "expected"), RULE_PROBLEMS.items(), ids=RULE_PROBLEMS.keys())
def test_invalid_rule_is_reported_with_its_place(tmp_path, rule, expected):
    text = EXPLICIT.replace("[{schema: hr}]", f"[{rule}]")
    key, _, rest = expected.partition(":")
    assert problems(tmp_path, text) == [f"captures.capture_hr.rules.include[0]{key} (line 12):{rest}"]


COMPONENT_PROBLEMS = {
    # text of the explicit form to replace -> (replacement, path, problem)
    "memory: 64MB": (
        "memory: 64XB",
        "queues.q_dbs1.memory",
        "'64XB' is not a size: write bytes or a number with a unit, such as 256MB (1MB = 1024kB)",
    ),
    "spill: 2GB": ("spill: 2kB", "queues.q_dbs1.spill", "'2kB' is too small: at least 1MB: one LCR batch must fit"),
    "q_dbs2: {site: dbs2}": (
        "q_dbs2: {site: dbs2, kind: persistent}",
        "queues.q_dbs2.kind",
        "kind: persistent is known but not yet built: write kind: buffered",
    ),
    "source: dbs1, queue: q_dbs1,": (
        "source: dbs1, parallelism: 5, queue: q_dbs1,",
        "captures.capture_hr.parallelism",
        "this key is known but not yet built: leave it out",
    ),
    ", rules: {include: [{schema: hr}]}": ("", "captures.capture_hr.rules", "is missing: add it"),
    "from: q_dbs1, to: q_dbs2": (
        "from: q_dbs1, to: q_dbs2, split_threshold: 5",
        "propagations.dbs1_to_dbs2.split_threshold",
        "5 is out of range: write at least 10",
    ),
    "queue: q_dbs2}": (
        "queue: q_dbs2, tag: 00}",
        "applies.apply_from_dbs1.tag",
        '0 is not a text: put hexadecimal digits in quotes, such as "00" (YAML reads 00 as a number)',
    ),
    "source: dbs1, queue: q_dbs2}": (
        "source: dbs1, queue: q_dbs2, tag: 'x'}",
        "applies.apply_from_dbs1.tag",
        '\'x\' is not hexadecimal: write pairs of hexadecimal digits, such as "00" or "1f"',
    ),
    "site: dbs2, source: dbs1, queue: q_dbs2}": (
        "site: dbs2, source: dbs1, queue: q_dbs2, tag: ''}",
        "applies.apply_from_dbs1.tag",
        'the tag is empty: write null for no tag, or a tag, such as "00"',
    ),
    "dbs1: {site: dbs2, source": (
        "dbs1: {parallelism: 0, site: dbs2, source",
        "applies.apply_from_dbs1.parallelism",
        "0 is out of range: write at least 1",
    ),
    "dbs1: {site: dbs2,": (
        "dbs1: {commit_serialization: none, site: dbs2,",
        "applies.apply_from_dbs1.commit_serialization",
        "'none' is not one of dependent_transactions, full: write one of these",
    ),
    "_dbs1: {site: dbs2": (
        "_dbs1: {mode: x, site: dbs2",
        "applies.apply_from_dbs1.mode",
        "this key is known but not yet built: leave it out: apply is transactional",
    ),
    "from_dbs1: {site: dbs2": (
        "from_dbs1: {ddl_handler: [], site: dbs2",
        "applies.apply_from_dbs1.ddl_handler",
        "this key is known but not yet built: leave it out",
    ),
    "apply_from_dbs1: {site: dbs2": (
        "apply_from_dbs1: {group_rows: yes, site: dbs2",
        "applies.apply_from_dbs1.group_rows",
        "True is not a whole number: write digits, without quotes",
    ),
}


@pytest.mark.parametrize(
    ("old", "new", "path", "expected"),
    [(old, *rest) for old, rest in COMPONENT_PROBLEMS.items()],
    ids=[f"{path}-{number}" for number, (_, path, _) in enumerate(COMPONENT_PROBLEMS.values())],
)
def test_invalid_component_is_reported_with_its_place(tmp_path, old, new, path, expected):
    assert EXPLICIT.count(old) == 1
    (found,) = problems(tmp_path, EXPLICIT.replace(old, new))
    place, _, rest = found.partition(" (line ")
    assert (place, rest.partition("): ")[2]) == (path, expected)


CAPTURE_SCNS = {
    "first_scn: yes": "first_scn (line 12): True is not an SCN",
    "first_scn: 0": "first_scn (line 12): 0 is not an SCN",
    "start_scn: 0/G1": "start_scn (line 12): '0/G1' is not an SCN: write it as `headrace status` shows it, such as"
    " 0/016B3748, or as a number",
    "first_scn: 0/00000050, start_scn: 0/0000004F": "(line 12): start_scn 0/0000004F is below first_scn 0/00000050: a"
    " capture process begins at its first SCN or above",
    "checkpoint_retention_time: 5": "checkpoint_retention_time (line 12): 5 is not a retention time: write one from 10s"
    " to 60d, such as 12h or 3d",
    "checkpoint_retention_time: 61d": "checkpoint_retention_time (line 12): '61d' is not a retention time",
}


@pytest.mark.parametrize(("given", "words"), CAPTURE_SCNS.items(), ids=CAPTURE_SCNS)
def test_impossible_scns_of_a_capture_process_are_refused(tmp_path, given, words):
    (found,) = problems(
        tmp_path, EXPLICIT.replace("source: dbs1, queue: q_dbs1,", f"source: dbs1, {given}, queue: q_dbs1,")
    )
    assert found.startswith("captures.capture_hr")
    assert words in found


def test_scns_and_retention_time_of_a_capture_process_are_read(tmp_path):
    text = EXPLICIT.replace(
        "source: dbs1, queue: q_dbs1,",
        "source: dbs1, first_scn: 1/0000000A, start_scn: 5000000000, checkpoint_retention_time: 3d, queue: q_dbs1,",
    )
    capture = read(tmp_path, text).capture("capture_hr")
    assert (capture.first_scn, capture.start_scn, capture.checkpoint_retention_s) == (
        (1 << 32) + 10,
        5_000_000_000,
        3 * 86_400.0,
    )


def test_name_unusable_for_database_objects_is_refused(tmp_path):
    found = problems(tmp_path, EXPLICIT.replace("capture_hr:", "Capture-HR:"))
    assert found == [
        "captures.Capture-HR (line 12): 'Capture-HR' cannot be a name: write a-z, 0-9 and _, a letter first, at most 30"
        " characters"
    ]


def test_tag_too_long_for_a_database_is_refused(tmp_path):
    text = EXPLICIT.replace("queue: q_dbs2}", f'queue: q_dbs2, tag: "{"ab" * 129}"}}')
    assert problems(tmp_path, text) == ["applies.apply_from_dbs1.tag (line 16): the tag has 129 bytes: at most 128"]


def test_unsupported_key_hides_no_other_problem_of_its_entry(tmp_path):
    text = EXPLICIT.replace("{site: dbs2}", "{site: dbs9, kind: persistent, memory: 5}")
    text = text.replace("source: dbs1, queue: q_dbs1,", "source: dbs7, parallelism: 5, queue: q_9,")
    text = text.replace("to: q_dbs2}", "to: q_8, split_threshold: 5}")
    text = text.replace("queue: q_dbs2}", "queue: q_dbs2, mode: direct, parallelism: 0}")
    text += "replicate:\n  - {schemas: [hr], from: dbs1, to: [dbs6], ddl: 1}"
    assert [found.partition(" (line")[0] for found in problems(tmp_path, text)] == [
        "queues.q_dbs2.kind",
        "queues.q_dbs2.memory",
        "queues.q_dbs2.site",
        "captures.capture_hr.parallelism",
        "captures.capture_hr.source",
        "captures.capture_hr.queue",
        "propagations.dbs1_to_dbs2.split_threshold",
        "propagations.dbs1_to_dbs2.to",
        "applies.apply_from_dbs1.parallelism",
        "applies.apply_from_dbs1.mode",
        "replicate[0].ddl",
        "replicate[0].to[0]",
    ]


def test_topology_without_sites_is_refused(tmp_path):
    (found,) = problems(tmp_path, "topology: t\nsites: {}")
    assert found.startswith("sites (line 2): is empty: name the databases")


def test_folder_as_topology_file_is_reported_as_a_problem(tmp_path):
    with pytest.raises(TopologyError, match="file: is a directory: check the path"):
        read_topology(tmp_path)


def test_reference_to_an_invalid_entry_is_not_a_second_problem(tmp_path):
    found = problems(tmp_path, EXPLICIT.replace("memory: 64MB", "memory: much"))
    assert len(found) == 1
    assert found[0].startswith("queues.q_dbs1.memory")


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("1MB", 1 << 20),
        ("1048576", 1 << 20),
        (1048577, 1048577),
        ("2 GB", 2 << 30),
        ("1GiB", 1 << 30),
        ("2048kB", 2 << 20),
        ("1TB", 1 << 40),
    ],
)
def test_sizes_use_units_of_1024(tmp_path, size, expected):
    text = f"topology: t\nsites: {{a: {{database: {{kind: embedded}}}}}}\nqueues: {{q: {{site: a, memory: {size}}}}}"
    assert read(tmp_path, text).queue("q").memory_bytes_max == expected


def test_apply_tag_defaults_to_00_and_can_be_null(tmp_path):
    spec = read(tmp_path, EXPLICIT)
    assert spec.apply("apply_from_dbs1").tag == b"\x00"
    spec = read(tmp_path, EXPLICIT.replace("source: dbs1, queue: q_dbs2}", "source: dbs1, queue: q_dbs2, tag: null}"))
    assert spec.apply("apply_from_dbs1").tag is None
    assert spec_from_json(spec_to_json(spec)) == without_secrets(spec)


def test_rules_by_tag_survive_storage(tmp_path):
    spec = read(
        tmp_path,
        EXPLICIT.replace("[{schema: hr}]", '[{schema: hr, tags: [null, "0b"]}, {schema: crm, not_tags: ["00ff"]}]'),
    )
    assert spec_from_json(spec_to_json(spec)).captures == spec.captures


def test_error_behaviour_can_be_set_for_all_applies_or_one(tmp_path):
    text = """
topology: t
sites: {a: {database: {kind: embedded}}, b: {database: {kind: embedded}}}
replicate: [{from: a, to: [b], tables: [hr.*]}]
"""
    file = tmp_path / "t.yaml"
    file.write_text(text)
    (apply,) = read_topology(file).applies
    assert apply.on_error == "hold_dependents"
    file.write_text(text + "on_error: disable\n")
    (apply,) = read_topology(file).applies
    assert apply.on_error == "disable"
    own = (
        f"on_error: disable\napplies: {{{apply.name}: {{site: b, source: a, queue: {apply.queue}, on_error:"
        " continue}}\n"
    )
    file.write_text(text + own)
    assert read_topology(file).applies[0].on_error == "continue"
    file.write_text(text + "on_error: sometimes\n")
    with pytest.raises(TopologyError, match="sometimes"):
        read_topology(file)
