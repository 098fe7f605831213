"""The components that run on Ray.

    controller             reconciles the topology file with what runs
    source_database        a site with a database: log writer, redo, sampler
    intermediate_database  a site without one: queues only
    downstream_database    a receiver of another site's redo
    capture, combined      mining and rules; combined: with a small queue mounted in the capture process
    staging                `queue` and `propagation`
    apply                  an apply process; `spark_application` runs the tasks of all apply processes of its site

Around them, `hosting` drives every component's synchronous core and is the only package that knows Ray. `control` holds the parts of the
controller, `site` what sites do, `security` certificates and admission, `records` a component's files, and `cluster` the Ray cluster.
"""
