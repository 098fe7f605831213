"""The Ray cluster: the private one of a topology on one machine (`local`, `ray_head`, `ray_stand_in`), or the nodes of a user's cluster.

`nodes` places a component on a node, `openness` checks whether other users could use the cluster, and `known_process` identifies processes.
"""
