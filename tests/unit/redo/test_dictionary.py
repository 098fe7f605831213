from __future__ import annotations

from dataclasses import replace

from databases.ports import DictionaryBuild, DictionaryTable
from redo.dictionary import Dictionary
from redo.records import decode_dictionary, encode_dictionary
from streams.lcr_batch import Column, OldImage, TableVersion, content_version


def described(number: int, name: str, *columns: str) -> TableVersion:
    return TableVersion(
        object_number=number, version=0, owner="s", name=name, old_image=OldImage.KEY,
        columns=tuple(Column(name=column, type_name="pg_catalog.text") for column in columns),
    )


def entry(number: int, stored: str, root: str = "", rows: str = "") -> DictionaryTable:
    return DictionaryTable(
        object_number=number, owner="s", name=root or stored, stored_owner="s", stored_name=stored, rows=rows,
    )


def build(scn: int, *tables: DictionaryTable) -> DictionaryBuild:
    return DictionaryBuild(scn=scn, tables=tables)


def test_partition_is_named_like_its_table_and_a_plain_table_as_the_log_says():
    dictionary = Dictionary()
    dictionary.add_build(build(1, entry(1, "e1", "e"), entry(2, "renamed_later")))
    assert dictionary.describe(described(1, "e1", "a"), 5).table.name == "e"
    assert dictionary.describe(described(2, "t", "a"), 5).table.name == "t"


def test_version_depends_on_content_only():
    one, two = described(1, "t", "a"), described(1, "t", "a", "b")
    assert content_version(one) == content_version(replace(one, version=99))
    assert content_version(one) != content_version(two)
    assert content_version(one) != content_version(replace(one, old_image=OldImage.FULL))


def test_attached_partition_is_mapped_from_its_next_description_on():
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
        # Nothing tells that it was dropped: if it was only detached, it may be attached again by the next TRUNCATE.
        assert not one.covers_all_partitions(1, [2])


def test_partition_that_became_a_table_of_its_own_counts_as_one_that_may_be_attached_again():
    dictionary = Dictionary()
    dictionary.add_build(build(1, entry(1, "e1", "e"), entry(2, "e2", "e")))
    known = [dictionary.describe(described(number, f"e{number}", "a"), 5) for number in (1, 2)]
    dictionary.add_build(build(9, entry(1, "e1", "e"), entry(2, "e2")))
    again = Dictionary.from_snapshot(decode_dictionary(encode_dictionary(dictionary.snapshot())))
    assert again.snapshot() == dictionary.snapshot()
    for one in (dictionary, again):
        assert not one.covers_all_partitions(1, [1])
        # LCRs name it `e` until it is described again: a TRUNCATE of it alone must not become one of `e`.
        assert one.current(2).table.name == "e"
        assert not one.covers_all_partitions(2, [2])
        assert one.covers_all_partitions(2, [1, 2])
        one.rename(known[1].renamed("s", "other"))  # by the rules' names; the builds' name counts
        assert not one.covers_all_partitions(2, [2])
        assert one.covers_all_partitions(2, [1, 2])


def test_snapshot_says_everything_that_is_in_force():
    dictionary = Dictionary()
    dictionary.add_build(build(1, entry(1, "e1", "e"), entry(2, "übergröße")))
    dictionary.describe(described(1, "e1", "a"), 5)
    dictionary.describe(described(2, "übergröße", "a", "\udc80"), 5)
    again = Dictionary.from_snapshot(decode_dictionary(encode_dictionary(dictionary.snapshot())))
    assert again.snapshot() == dictionary.snapshot()
    assert again.current(1) == dictionary.current(1)
    assert list(again.names()) == [("s", "e"), ("s", "übergröße")]
    assert again.current(2) == dictionary.current(2)


def test_rows_of_a_truncated_partition_are_those_of_its_description_unless_the_catalog_was_read_later():
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
