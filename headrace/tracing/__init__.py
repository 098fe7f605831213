"""Where a transaction, or a row's change, went and where it stopped."""
