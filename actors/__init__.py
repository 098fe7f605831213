"""The components that run on Ray.

    controller             reconciles the topology file with what runs
    source_database        a site with a database: log writer, redo, sampler
    intermediate_database  a site without one: queues only
    downstream_database    a receiver of another site's redo
    capture, combined      mining and rules; combined: with a small queue of its own
    staging                `queue` and `propagation`
    apply                  an apply process; `spark_application` works for all of its site

Around them: `hosting` drives every component's synchronous core and alone knows Ray, `control` is what the controller consists of,
`site` what sites do, `security` certificates and who is admitted, `records` what a component keeps on its disk, `cluster` the Ray cluster.
"""
