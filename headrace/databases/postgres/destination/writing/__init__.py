"""What an apply server writes: sets of rows with the notes of their times, TRUNCATE, and the checks of foreign keys behind them."""
