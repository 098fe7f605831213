"""What Headrace keeps in a destination, in the schema headrace: how it is made, written, shown and removed."""
