"""What an apply server writes: sets of rows, TRUNCATE, and the checks of foreign keys behind them."""
