from __future__ import annotations

import json
import zlib
from dataclasses import replace

import pytest

from headrace.databases.ports import DictionaryBuild, DictionaryTable
from headrace.lcr.batch import Column, OldImage, TableVersion, content_version
from headrace.lcr.scn import NO_OBJECT, ObjectNumber
from headrace.redo.dictionary import Dictionary
from headrace.redo.records import decode_dictionary, encode_dictionary


def described(number: int, name: str, *columns: str) -> TableVersion:
    return TableVersion(
        object_number=number,
        version=0,
        owner="s",
        name=name,
        old_image=OldImage.KEY,
        columns=tuple(Column(name=column, type_name="pg_catalog.text") for column in columns),
    )


def entry(number: int, stored: str, root: str = "", rows: str = "", *, root_number: int = 0) -> DictionaryTable:
    return DictionaryTable(
        object_number=number,
        owner="s",
        name=root or stored,
        stored_owner="s",
        stored_name=stored,
        rows=rows,
        root_number=ObjectNumber(root_number),
    )


def as_earlier(dictionary: Dictionary) -> Dictionary:
    """Return the same dictionary as read from redo of an earlier version."""
    fields = json.loads(zlib.decompress(encode_dictionary(dictionary.snapshot())))
    del fields["roots"], fields["computed"]
    return Dictionary.from_snapshot(decode_dictionary(zlib.compress(json.dumps(fields).encode())))


def build(scn: int, *tables: DictionaryTable) -> DictionaryBuild:
    return DictionaryBuild(scn=scn, tables=tables)


def test_partition_has_its_tables_name_and_a_plain_table_its_own():
    dictionary = Dictionary()
    dictionary.add_build(build(1, entry(1, "e1", "e"), entry(2, "renamed_later")))
    assert dictionary.describe(described(1, "e1", "a"), 5).table.name == "e"
    assert dictionary.describe(described(2, "t", "a"), 5).table.name == "t"


def computed(dictionary: Dictionary) -> list[str]:
    return [column.name for column in dictionary.current(1).table.columns if column.is_computed]


def test_computed_columns_come_from_the_awaited_build():
    table = entry(1, "t")
    dictionary = Dictionary()
    dictionary.add_build(build(1, replace(table, computed=("b",))))
    first = dictionary.describe(described(1, "t", "a", "b"), 5).table
    assert computed(dictionary) == ["b"]
    dictionary.await_build([7])
    dictionary.describe(described(1, "t", "a", "b"), 8)
    assert computed(dictionary) == ["b"]
    dictionary.add_build(build(9, table))
    assert computed(dictionary) == []
    assert dictionary.current(1).table.version != first.version


def test_computed_columns_are_in_a_segments_head():
    dictionary = Dictionary()
    dictionary.add_build(build(1, replace(entry(1, "t"), computed=("b",))))
    dictionary.describe(described(1, "t", "a", "b"), 5)
    again = Dictionary.from_snapshot(decode_dictionary(encode_dictionary(dictionary.snapshot())))
    assert computed(again) == ["b"]
    again.describe(described(1, "t", "a", "b", "c"), 6)
    assert computed(again) == ["b"]


def test_every_column_from_redo_of_an_earlier_version_may_be_computed():
    dictionary = Dictionary()
    dictionary.add_build(build(1, entry(1, "t")))
    dictionary.describe(described(1, "t", "a", "b"), 5)
    earlier = as_earlier(dictionary)
    again = Dictionary.from_snapshot(decode_dictionary(encode_dictionary(earlier.snapshot())))
    for one in (earlier, again):
        assert computed(one) == ["a", "b"]
        assert [column.is_computed for column in one.describe(described(1, "t", "a"), 6).table.columns] == [True]
        one.add_build(build(9, replace(entry(1, "t"), computed=("b",))))
        one.describe(described(1, "t", "a", "b"), 10)
        assert computed(one) == ["b"]


def test_version_depends_on_content_only():
    one, two = described(1, "t", "a"), described(1, "t", "a", "b")
    assert content_version(one) == content_version(replace(one, version=99))
    assert content_version(one) != content_version(two)
    assert content_version(one) != content_version(replace(one, old_image=OldImage.FULL))


def test_attached_partition_maps_to_its_table_at_its_next_description():
    dictionary = Dictionary()
    dictionary.add_build(build(1, entry(1, "t")))
    dictionary.describe(described(1, "t", "a"), 5)
    dictionary.add_build(build(9, entry(1, "t", "root")))
    assert dictionary.current(1).table.name == "t"
    dictionary.describe(described(1, "t", "a"), 10)
    assert dictionary.current(1).table.name == "root"
    assert dictionary.current(1).from_scn == 10
    assert dictionary.current(2) is None


def test_dropped_partition_stays_known_until_redo_no_longer_names_it():
    dictionary = Dictionary()
    dictionary.add_build(build(1, entry(1, "e1", "e"), entry(2, "e2", "e")))
    dictionary.add_build(build(9, entry(2, "e2", "e")))
    again = Dictionary.from_snapshot(decode_dictionary(encode_dictionary(dictionary.snapshot())))
    for one in (dictionary, again):
        assert one.describe(described(1, "e1", "a"), 10).table.name == "e"
        assert one.covers_all_partitions(1, [1, 2])
        # Nothing shows whether it was dropped: if only detached, it may be attached again by the next TRUNCATE.
        assert not one.covers_all_partitions(1, [2])


def test_partition_detached_into_a_plain_table_may_be_attached_again():
    dictionary = Dictionary()
    dictionary.add_build(build(1, entry(1, "e1", "e"), entry(2, "e2", "e")))
    known = [dictionary.describe(described(number, f"e{number}", "a"), 5) for number in (1, 2)]
    dictionary.add_build(build(9, entry(1, "e1", "e"), entry(2, "e2")))
    again = Dictionary.from_snapshot(decode_dictionary(encode_dictionary(dictionary.snapshot())))
    assert again.snapshot() == dictionary.snapshot()
    for one in (dictionary, again):
        assert not one.covers_all_partitions(1, [1])
        # LCRs name it `e` until its next description: a TRUNCATE of it alone must not become one of `e`.
        assert one.current(2).table.name == "e"
        assert not one.covers_all_partitions(2, [2])
        assert one.covers_all_partitions(2, [1, 2])
        one.rename(known[1].renamed("s", "other"))  # names of the rules; the build's name decides
        assert not one.covers_all_partitions(2, [2])
        assert one.covers_all_partitions(2, [1, 2])


def test_version_names_its_root_table_when_the_build_knows_it():
    dictionary = Dictionary()
    dictionary.add_build(
        build(1, entry(1, "e1", "e", root_number=9), entry(2, "t", root_number=2), entry(3, "old1", "old"))
    )

    def root(number: int, name: str) -> int:
        return dictionary.describe(described(number, name, "a"), 5).table.root_number

    assert [root(1, "e1"), root(2, "t")] == [9, 2]
    assert root(3, "old1") == NO_OBJECT, "a build of an earlier version"
    assert root(4, "made_and_dropped") == NO_OBJECT, "no build contains it: it may have been a partition"
    again = Dictionary.from_snapshot(decode_dictionary(encode_dictionary(dictionary.snapshot())))
    assert [again.current(number) for number in (1, 2, 3, 4)] == [dictionary.current(number) for number in (1, 2, 3, 4)]
    dictionary.add_build(build(9, entry(1, "e1", "renamed", root_number=9)))
    assert dictionary.describe(described(1, "e1", "a"), 10).table.table_number == 9


def test_partition_detached_before_a_rename_still_belongs_to_the_table():
    """Otherwise a TRUNCATE of all other partitions would empty the whole table at the destination."""
    dictionary = Dictionary()
    dictionary.add_build(
        build(1, *(entry(n, f"e{n}", "e", root_number=9) for n in (1, 2)), entry(9, "e", root_number=9))
    )
    dictionary.add_build(
        build(5, entry(1, "e1", "e", root_number=9), entry(2, "e2", root_number=2), entry(9, "e", root_number=9))
    )
    dictionary.add_build(
        build(9, entry(1, "e1", "f", root_number=9), entry(2, "e2", root_number=2), entry(9, "f", root_number=9))
    )
    dictionary.describe(described(1, "e1", "a"), 10)
    again = Dictionary.from_snapshot(decode_dictionary(encode_dictionary(dictionary.snapshot())))
    assert again.snapshot() == dictionary.snapshot()
    for one in (dictionary, again):
        assert one.current(1).table.name == "f"
        assert not one.covers_all_partitions(1, [1])
        assert one.covers_all_partitions(1, [1, 2])


@pytest.mark.parametrize("is_described_again", [False, True])
def test_partitions_from_redo_of_an_earlier_version_keep_their_table(is_described_again: bool):
    root, first, third = (entry(n, f"e{n}" if n < 9 else "e", "e", root_number=9) for n in (9, 1, 3))
    dictionary = Dictionary()
    dictionary.add_build(build(1, root, first, entry(2, "e2", "e", root_number=9), third))
    dictionary.describe(described(1, "e1", "a"), 2)
    dictionary.add_build(build(3, root, first, entry(2, "e2", root_number=2), third))
    earlier = as_earlier(dictionary)
    assert earlier.current(1).table.root_number == NO_OBJECT
    assert earlier.covers_all_partitions(1, [1, 2, 3])
    earlier.add_build(build(5, root, first, entry(2, "e2", root_number=2), third))
    again = Dictionary.from_snapshot(decode_dictionary(encode_dictionary(earlier.snapshot())))
    for one in (earlier, again):
        if is_described_again:
            assert one.describe(described(1, "e1", "a"), 10).table.root_number == 9
        assert not one.covers_all_partitions(1, [1, 3])
        assert one.covers_all_partitions(1, [1, 2, 3])


def test_recreated_partitioned_table_has_no_partitions_of_the_dropped_one():
    dictionary = Dictionary()
    dictionary.add_build(build(1, entry(1, "e1", "e", root_number=9)))
    dictionary.add_build(build(5, entry(2, "e1", "e", root_number=10)))
    dictionary.describe(described(2, "e1", "a"), 6)
    assert dictionary.covers_all_partitions(2, [2])


def test_snapshot_contains_everything_in_force():
    dictionary = Dictionary()
    dictionary.add_build(build(1, entry(1, "e1", "e"), entry(2, "übergröße")))
    dictionary.describe(described(1, "e1", "a"), 5)
    dictionary.describe(described(2, "übergröße", "a", "\udc80"), 5)
    again = Dictionary.from_snapshot(decode_dictionary(encode_dictionary(dictionary.snapshot())))
    assert again.snapshot() == dictionary.snapshot()
    assert again.current(1) == dictionary.current(1)
    assert list(again.names()) == [("s", "e"), ("s", "übergröße")]
    assert again.current(2) == dictionary.current(2)


def test_truncated_partition_has_the_bounds_of_its_description_or_catalog():
    dictionary = Dictionary()
    dictionary.add_build(build(10, entry(1, "e1", "e", "a < 5")))
    dictionary.describe(described(1, "e1", "a"), 12)
    dictionary.add_build(build(50, entry(1, "e1", "e", "a < 3")))

    def rows(one: Dictionary, scn: int) -> str:
        known = one.current(1)
        truncated = one.truncated(known, scn)
        assert (truncated.name, truncated.partition.name) == ("e", "e1")
        return truncated.partition.rows

    again = Dictionary.from_snapshot(decode_dictionary(encode_dictionary(dictionary.snapshot())))
    for one in (dictionary, again):
        assert rows(one, 30) == "a < 5"  # other bounds would have been described before it
        one.describe(described(1, "e1", "a"), 31)
        once_more = Dictionary.from_snapshot(decode_dictionary(encode_dictionary(one.snapshot())))
        assert rows(one, 32) == rows(once_more, 32) == ""
        assert rows(one, 50) == rows(once_more, 50) == "a < 3"
