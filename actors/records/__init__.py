"""A component's files on its disk, for its restarted process; `files` defines their location.

Every component: whether an operator wants it to run (`wanted`), the topology that it adopted (`taken_over`), and the lock of its process
(`running`). The controller: operators' requests for split streams (`requests`). An apply process: whether rows were kept (`kept_rows`).
"""
