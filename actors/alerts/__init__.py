"""Alerts: events that an operator must learn of without asking.

`watch` finds them in overviews; `sending`, used by the controller, sends them.
"""
