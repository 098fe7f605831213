"""One error transaction as the commands of the error queue print it."""

import pytest

from headrace.commands import error_deletion
from headrace.commands.error_deletion import delete_together
from headrace.commands.error_queue import _line, _lines, _shown_ddl
from headrace.console.output import Output
from tests.support.values.ddl_changes import ddl_change

ERROR = {
    "number": 3,
    "apply": "a",
    "source": "dbs1",
    "transaction_id": 7,
    "commit_scn": 100,
    "row_count": 1,
    "created_us": 0,
    "edits": 0,
    "message": "own:run failed: first line\nsecond line",
    "waits_behind": 0,
    "depends_on": 0,
    "conflict_type": "",
    "sqlstate": "",
}


def test_message_of_several_lines_is_one_line_only_in_a_list() -> None:
    assert _line(ERROR, is_short=True).endswith(": own:run failed: first line second line")
    assert _line(ERROR).endswith(": own:run failed: first line\nsecond line")


def test_ddl_lcr_is_shown_with_the_text_of_its_statement() -> None:
    change = ddl_change(query="ALTER TABLE jobs\nADD v integer")
    assert list(_lines(_shown_ddl(change, 4), {**ERROR, "failed_position": 5})) == [
        "  4: ALTER TABLE hr.jobs",
        "      ALTER TABLE jobs",
        "      ADD v integer",
    ]
    assert next(_lines(_shown_ddl(change, 4), {**ERROR, "failed_position": 4})) == "> 4: ALTER TABLE hr.jobs"


def test_outcome_of_a_deletion_is_one_line(capsys) -> None:
    outcome = {
        "number": 3,
        "done": False,
        "problem": "first line\nsecond line",
        "failure": {"message": "first line\nsecond line", "position": -1},
    }
    delete_together(Output(as_json=False), [ERROR], lambda *_: [outcome])
    assert capsys.readouterr().out.splitlines() == ["1/1 a 3: not deleted: first line second line"]


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_interrupted_deletion_reports_running_and_untried_errors(
    end: type[BaseException], capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(error_deletion, "DELETED_AT_ONCE", 1)

    def interrupted(*_: object) -> list[dict[str, object]]:
        raise end

    with pytest.raises(end):
        delete_together(Output(as_json=True), [ERROR, ERROR, ERROR], interrupted)
    told = capsys.readouterr()
    assert (
        told.err
        == "a: what was begun goes on: `headrace errors list FILE` shows what became of it; 2 others not tried\n"
    )
    assert not told.out
