"""Apply: one Spark application for each destination site.

application   starts Spark on Ray, and holds the site's one process
driver        reads batches, finds dependencies between transactions, hands out groups, commits progress
server        runs in Spark tasks: executes groups at the destination
sets          rows of a group as sets, and their conflicts
handlers      users' functions
copy          instantiation and comparison of tables
conversation  what driver and servers say to each other
dependencies, tables  whose rows meet; which tables arrive
keys         what counts as the same key
"""
