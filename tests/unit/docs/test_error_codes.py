"""The page of error codes is what the classes say, and every class has a code, a cause and a fix."""

from __future__ import annotations

import inspect
import re
from collections import Counter

import typer

from headrace.cli.app import app
from scripts.error_codes import PAGE, coded, page
from tests.support.session.verbs import verbs


def test_page_of_error_codes_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_code_belongs_to_one_class_with_a_cause_and_a_fix():
    mine = coded()
    assert len(mine) > 30
    assert [code for code, count in Counter(each.code for each in mine).items() if count > 1] == []
    assert [each.__name__ for each in mine if not inspect.getdoc(each) or not vars(each).get("fix")] == []


def test_every_command_of_a_fix_exists():
    known = {verb for verb, _ in verbs(typer.main.get_command(app))}
    named = {verb for each in coded() for verb in re.findall(r"`headrace ((?:errors )?[a-z]+)", each.fix)}
    assert "errors show" in named
    assert named - known == set()
