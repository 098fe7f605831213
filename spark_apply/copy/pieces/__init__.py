"""One round of copies: tables in pieces, the Spark tasks that copy them, and the board that assigns the pieces."""
