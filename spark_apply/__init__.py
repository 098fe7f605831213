"""Apply: one Spark application for each destination site.

application   starts Spark on Ray and runs the site's single process
driver        reads batches, finds dependencies between transactions, hands out groups, commits progress
server        runs in Spark tasks: executes groups at the destination
sets          rows of a group as sets, and their conflicts
handlers      users' functions
copy          instantiation and comparison of tables
conversation  messages between driver and apply servers
dependencies, tables  dependencies between rows; arriving tables
keys         equality and hashes of keys
"""
