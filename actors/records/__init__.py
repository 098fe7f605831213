"""What a component keeps on its disk, for its own next life; `files` says where.

Of every component: whether it is wanted (`wanted`), the topology that it adopted (`taken_over`), that it runs (`running`). Of the
controller what operators asked of split streams (`requests`), of an apply process whether rows were kept (`kept_rows`).
"""
