"""The tables of the example files that transform changes, as their comments describe them.

They are created at the source, as in users' tests.
"""

from __future__ import annotations

from pathlib import Path

from headrace.testing import Table

EXAMPLES = Path(__file__).parents[3] / "examples"
TIMES = {"arrived"}  # columns that get the current time

TABLES = {
    "rules": [
        Table(name="hr.employees", columns={"id": "int4", "department_id": "int4"}, logs_old_rows=True),
        Table(name="hr.departments", columns={"id": "int4", "name": "text"}, logs_old_rows=True),
        Table(name="hr.orders", columns={"id": "int4", "status": "text"}, logs_old_rows=True),
    ],
    "transformations": [
        Table(
            name="hr.employees",
            key=("employee_id",),
            logs_old_rows=False,
            columns={
                "employee_id": "int4",
                "full_name": "text",
                "department_id": "int4",
                "salary": "numeric",
                "commission": "numeric",
            },
        ),
        Table(name="hr.departments", columns={"id": "int4", "name": "text"}, logs_old_rows=True),
    ],
    "functions": [
        Table(
            name="shop.customers",
            columns={"id": "int4", "name": "text", "email": "text", "password": "text"},
            logs_old_rows=True,
        ),
        Table(name="shop.orders", columns={"id": "int4", "kind": "text", "note": "text"}, logs_old_rows=True),
    ],
}
