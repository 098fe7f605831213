"""The parts of a site, with or without a database; `host` is what every site does.

`connection` derives a site's database from the topology, `database` starts it and connects to it, `claim` holds it, `admin` acts in it as
its administrator, and `sampling` queries it continuously. `source_role` and `destination_role` are the two roles of a site with a database,
`source_redo` is its redo log, `prepared_note` records its preparation. `captured_tables`, `asked_names` and `redo_keeper` serve capture
processes; `receivers`, `left` and `standby_folders` handle what edits change.
"""
