"""What belongs to one site, with or without a database: `host` is what every site does.

`connection` derives a site's database from the topology, `claim` holds it, `admin` acts in it as its administrator, `sampling` asks it all
the time. `captured_tables`, `asked_names` and `redo_keeper` are for capture processes, `receivers`, `left` and `standby_folders` for what
edits change.
"""
