"""Alerts: what an operator must hear of without asking. `watch` finds it in overviews; `sending`, which the controller uses, sends it."""
