"""What belongs to one site, with or without a database: `host` is what every site does.

`connection` derives a site's database from the topology, `database` starts it and connects to it, `claim` holds it, `admin` acts in it as
its administrator, `sampling` asks it all the time. `source_role` and `destination_role` are what a site with a database does as either,
`source_redo` is its redo log, `prepared_note` says what it was prepared as. `captured_tables`, `asked_names` and `redo_keeper` are for
capture processes, `receivers`, `left` and `standby_folders` for what edits change.
"""
