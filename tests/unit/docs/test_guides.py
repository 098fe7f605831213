"""The examples in the guides run: each YAML block in a topology that supplies the rest, each Python block on LCRs.

A block that is new, has changed its kind or has moved to another page fails here until it is run.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.rules.user_code.handlers import ExecutionHandler
from headrace.rules.user_code.source import UserFunction
from headrace.testing import Destination, Table, row_lcr, transform, values_of
from tests.support.apply.handlers import Handled, code_of, inserts, row, rules_of
from tests.support.session.guides import GUIDES, blocks
from topology.checks.static import check
from topology.file.reading import read_topology
from topology.plan import make_plan

ROOT = Path(__file__).parents[3]
SERVERS = {
    f"DBS{number}{kind}_DSN": f"postgresql://headrace{kind.lower()}:secret@127.0.0.1/app{number}"
    for number in (1, 2, 3)
    for kind in ("", "_ADMIN")
}
ENVIRONMENT = {"ALERT_HOOK": "https://pager.example/hook", "ALERT_TOKEN": "secret", **SERVERS}
SECRETS = {"dbs2": "word", "dbs2_admin": SERVERS["DBS2_ADMIN_DSN"]}  # by the name of their file


class Loader(yaml.SafeLoader):
    """A loader for which `on` is a word, and not True."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool" or first in "tTfF"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def sites(*names: str) -> dict[str, Any]:
    return {
        "topology": "guide",
        "state_dir": ".headrace/guide",
        "sites": {name: {"database": {"kind": "embedded"}} for name in names},
    }


def explicit(capture: str, apply: str, **include: list[Any]) -> dict[str, Any]:
    """One-way replication in the long form, for blocks that show a part of it."""
    rules = include.get("include", [{"schema": "hr"}, {"schema": "shop"}, {"schema": "sales"}])
    return {
        **sites("dbs1", "dbs2"),
        "queues": {"q_dbs1": {"site": "dbs1"}, "q_dbs2": {"site": "dbs2"}},
        "captures": {capture: {"site": "dbs1", "source": "dbs1", "queue": "q_dbs1", "rules": {"include": rules}}},
        "propagations": {"to_dbs2": {"from": "q_dbs1", "to": "q_dbs2"}},
        "applies": {apply: {"site": "dbs2", "source": "dbs1", "queue": "q_dbs2"}},
    }


def replicated(*names: str) -> dict[str, Any]:
    return {**sites(*names), "replicate": [{"tables": ["hr.*", "shop.*"], "between": list(names)}]}


WAY = {**sites("dbs1", "dbs2"), "replicate": [{"tables": ["hr.*", "shop.*"], "from": "dbs1", "to": ["dbs2"]}]}
AROUND: dict[str, dict[str, Any]] = {
    "rules 1": explicit("capture_all", "apply_dbs2"),
    "rules 2": explicit("capture_hr", "apply_dbs2"),
    "rules 3": explicit("capture_shop", "apply_dbs2"),
    "handlers 1": WAY,
    "conflicts 1": replicated("dbs1", "dbs2"),
    "conflicts 2": replicated("dbs1", "dbs2"),
    "conflicts 3": replicated("dbs1", "dbs2", "dbs3"),
    "keys 1": WAY,
    "keys 2": WAY,
    "keys 3": WAY,
    "keys 4": WAY,
    "order 1": explicit("capture_shop", "apply_at_dbs2"),
    "errors 1": WAY,
    "proof 1": explicit("capture_hr", "apply_at_dbs2", include=[{"schema": "hr", "tagged": True}, {"schema": "hr"}]),
    "processes 1": WAY,
    "durability 1": WAY,
    "add-a-site 1": sites("dbs1", "dbs2"),
    "add-a-table 1": sites("dbs1", "dbs2"),
    "alter-a-table 1": WAY,
    "capture-downstream 1": {
        **sites("dbs1", "dbs2"),
        "queues": {"q_dbs2": {"site": "dbs2"}},
        "applies": {"apply_dbs2": {"site": "dbs2", "source": "dbs1", "queue": "q_dbs2"}},
    },
    "encrypt-links 1": WAY,
    "encrypt-links 2": WAY,
    "grant-rights 1": WAY,
    "keep-secrets 1": WAY,
    "replicate-a-part 1": {},
    "replicate-ddl 1": sites("dbs1", "dbs2"),
    "resolve-conflicts 1": replicated("dbs1", "dbs2"),
    "restore-a-destination 1": {
        **sites("dbs1", "dbs2"),
        "replicate": [{"schemas": ["hr"], "from": "dbs1", "to": ["dbs2"]}],
    },
    "split-a-stream 1": WAY,
    "switch-over 1": sites("dbs1", "dbs2"),
    "tag-changes 1": explicit("capture_dbs1", "apply_dbs2"),
    "tune 1": WAY,
    "use-a-slow-line 1": WAY,
    "use-a-slow-line 2": WAY,
    "use-several-machines 1": WAY,
    "write-a-handler 1": {},
}
CODE = {
    "write-a-handler 1": {"handlers/orders.py": "def apply_order(lcr, session):\n    pass\n"},
    "rules 3": {"masks/masks.py": "def without_internal(lcr):\n    return lcr\ndef pseudonym(lcr):\n    return lcr\n"},
    "handlers 1": {
        "handlers/audit.py": "def committed(commit_scn, session):\n    pass\n",
        **{
            f"handlers/{name}.py": (ROOT / "examples" / "handlers" / f"{name}.py").read_text()
            for name in ("orders", "customers")
        },
    },
}


def merged(around: dict[str, Any], inside: dict[str, Any]) -> dict[str, Any]:
    return {
        **around,
        **{
            key: merged(around[key], value) if isinstance(value, dict) and isinstance(around.get(key), dict) else value
            for key, value in inside.items()
        },
    }


@pytest.mark.parametrize(("name", "text"), blocks("yaml"), ids=[name for name, _ in blocks("yaml")])
def test_each_yaml_block_of_a_guide_is_read_checked_and_planned(name: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "guide.yaml"
    for path, code in CODE.get(name, {}).items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(code)
    for secret, value in SECRETS.items():
        (tmp_path / secret).write_text(value)
    block = yaml.load(text.replace("/run/secrets", str(tmp_path)), Loader)
    written = yaml.safe_dump(merged(AROUND[name], block), sort_keys=False)
    file.write_text(written.replace("synchronous_commit: 'on'", "synchronous_commit: on"))  # as a person writes it
    spec = read_topology(file, ENVIRONMENT)
    assert [finding for finding in check(spec) if finding.is_error] == []
    assert make_plan(spec).ways
    top = {str(key) for key in block}
    assert len(re.findall(r"^\w+:", text, re.MULTILINE)) == len(top), "a duplicate key hides another one"


def function(guide: str, name: str) -> Any:
    """A function of a guide, and its text."""
    (text,) = [text for place, text in blocks("python") if place.startswith(f"{guide} ") and f"def {name}(" in text]
    found: dict[str, Any] = {"__name__": "guide"}
    exec(compile(text, str(GUIDES[guide]), "exec"), found)
    return found[name], text


def test_every_function_of_the_guides_is_run_here() -> None:
    assert {
        name for _, text in blocks("python") for name in re.findall(r"^def (?!test_)(\w+)\(", text, re.MULTILINE)
    } == {
        "pseudonym",
        "apply_order",
        "keep_change",
        "note_double",
        "skip_it",
    }


def test_masking_function_gives_old_and_new_the_same_pseudonym() -> None:
    mask, _ = function("rules", "pseudonym")
    people = Table(name="shop.customers", columns={"id": "int4", "email": "text"}, logs_old_rows=True)
    (after,) = transform(
        mask, row_lcr(people, "UPDATE", old={"id": 1, "email": "a@b"}, new={"id": 1, "email": "c@d"}), columns=["email"]
    )
    assert values_of(after, "old") == {"id": 1, "email": hashlib.sha256(b"a@b").hexdigest()[:16]}
    assert values_of(after, "new") == {"id": 1, "email": hashlib.sha256(b"c@d").hexdigest()[:16]}
    (after,) = transform(mask, row_lcr(people, "INSERT", new={"id": 2, "email": None}))
    assert values_of(after, "new") == {"id": 2, "email": None}


def test_procedure_writes_the_status_in_capitals(tmp_path: Path) -> None:
    _, text = function("handlers", "apply_order")
    (tmp_path / "handlers").mkdir()
    (tmp_path / "handlers" / "orders.py").write_text(text)
    (tmp_path / "t.yaml").write_text(
        yaml.safe_dump(
            WAY
            | {
                "code": "./handlers",
                "dml_handlers": [{"table": "shop.orders", "function": "orders:apply_order"}],
            }
        )
    )
    orders = Table(name="shop.orders", columns={"id": "int4", "status": "text"}, logs_old_rows=True)
    destination = Destination.from_file(tmp_path / "t.yaml", tables=[orders])
    destination.apply(
        row_lcr(orders, "INSERT", new={"id": 1, "status": "new"}),
        row_lcr(orders, "INSERT", new={"id": 2, "status": None}),
        row_lcr(orders, "INSERT", new={"id": 3, "status": "new"}),
    )
    destination.apply(row_lcr(orders, "UPDATE", old={"id": 1, "status": "new"}, new={"status": "sent"}))
    destination.apply(row_lcr(orders, "DELETE", old={"id": 3, "status": "new"}))
    assert (destination.rows("shop.orders"), destination.errors) == (
        [{"id": 1, "status": "SENT"}, {"id": 2, "status": None}],
        [],
    )


ORDERS = Table(name="shop.orders", columns={"id": "int4", "status": "text"}, logs_old_rows=True)
ARCHIVE = Table(name="shop.orders_archive", columns={"id": "int4", "status": "text"})
DOUBLES = Table(name="shop.doubles", columns={"id": "int4"}, key=())


def handled_by(folder: Path, name: str, text: str) -> Destination:
    """An apply process whose handler of shop.orders is a function of a guide."""
    (folder / "handlers").mkdir()
    (folder / "handlers" / "own.py").write_text(text)
    handler = {"table": "shop.orders", "operations": ["insert", "update"], "function": f"own:{name}"}
    (folder / "t.yaml").write_text(yaml.safe_dump(WAY | {"code": "./handlers", "dml_handlers": [handler]}))
    destination = Destination.from_file(folder / "t.yaml", tables=[ORDERS, ARCHIVE, DOUBLES])
    destination.insert("shop.orders", {"id": 1, "status": "new"})
    return destination


@pytest.mark.parametrize("both", [False, True], ids=["instead", "as well"])
def test_update_is_written_as_an_insert_into_another_table(tmp_path: Path, *, both: bool) -> None:
    _, text = function("handlers", "keep_change")
    first = "    row = lcr.get_values"
    text = text.replace(first, f"    lcr.copy().execute(conflict_resolution=True)\n{first}") if both else text
    destination = handled_by(tmp_path, "keep_change", text)
    destination.apply(row_lcr(ORDERS, "UPDATE", old={"id": 1, "status": "new"}, new={"status": "sent"}))
    assert destination.errors == []
    assert destination.rows("shop.orders") == [{"id": 1, "status": "sent" if both else "new"}]
    assert destination.rows("shop.orders_archive") == [{"id": 1, "status": "sent"}]


def test_procedure_catches_the_conflict_that_it_names_and_no_other(tmp_path: Path) -> None:
    destination = handled_by(tmp_path, "note_double", function("handlers", "note_double")[1])
    destination.on(
        "INSERT INTO shop.doubles (id) VALUES ($1)",
        lambda tables, key: [tables.insert("shop.doubles", {"id": key}) or ()],
    )
    destination.apply(row_lcr(ORDERS, "INSERT", new={"id": 1, "status": "paid"}))
    assert (destination.errors, destination.rows("shop.doubles")) == ([], [{"id": 1}])
    destination.apply(row_lcr(ORDERS, "UPDATE", old={"id": 2, "status": "a"}, new={"status": "b"}))
    (error,) = destination.errors
    assert error.startswith("update_missing: ")


def test_error_function_skips_the_row_that_failed() -> None:
    _, text = function("errors", "skip_it")
    code = code_of(text)
    at = Handled(rules_of(), rows=[row(2, "theirs")])
    at.apply([*inserts(1), *inserts(2, "ours"), *inserts(3)])
    (error,) = at.errors()
    through = ExecutionHandler(
        function=UserFunction(name="own:skip_it", version=code.version_of("own:skip_it")), code=code, timeout_s=5.0
    )
    assert at.execute_error(error.number, through).failure is None
    assert (at.values(), at.errors()) == ({1: "a", 2: "theirs", 3: "a"}, ())
