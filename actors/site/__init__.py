"""What belongs to one site: its connection, its claim, the tables that are captured there."""
