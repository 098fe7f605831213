"""Writes of an apply server: sets of rows with notes of their times, TRUNCATE, and checks of foreign keys after them."""
