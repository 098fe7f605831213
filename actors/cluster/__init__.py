"""The Ray cluster: the private one of a topology on one machine (`local`, `ray_head`, `ray_stand_in`), and the nodes of the user's own.

`nodes` says on which node a component runs, `openness` whether anybody could use the cluster, `known_process` which process is whose.
"""
