"""DDL changes at a destination: from a source's record to statements, and the proof of what they did.

The text that a client sent is never run. A record has the table before and after the change, and the destination has it
as it is: the statements follow from these three. A module imports only modules further down this list.

creation          a new table: what to run, and what a table that is there already lacks to be it
planning          the changes that a record asks for: what to run, what is there already, what is not replicated
proof             the table afterwards: what was to change has its new form, everything else has its old one
statements        the statements, in their order
comparison        each part of the table: as before, as after, or neither
refusals          the changes that are not replicated
conversions       rewritings of rows that give the same values at both sides
structure_query   the one query that describes a table, at a source and at a destination
"""
