"""Alerts: what an operator must hear of without asking, found in what the controller observes, and sent beside it."""
