"""What is asked of two databases alike, to be compared: columns, types, and what else of a table's shape must fit."""
