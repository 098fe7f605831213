"""How a person is answered: tables and lines (`output`), progress of what is long, the short form of `status`, exit codes."""
