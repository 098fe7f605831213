"""What every package stands on and what knows none of them: errors, clocks, durable files, failpoints."""
