"""The components that run on Ray.

    controller           reconciles the topology file with what runs
    source_database      a site with a database: log writer, redo, sampler
    downstream_database  a receiver of another site's redo
    capture, combined    mining and rules; combined: with a small queue of its own
    staging              queues and propagations
    apply                an apply process, and the Spark application that works for it

`host` drives every component's synchronous core, `components` holds the hosts of a process, `runtime` alone knows Ray.
"""
