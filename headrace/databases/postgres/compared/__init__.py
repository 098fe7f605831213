"""Comparisons of a source's and a destination's catalogs: columns, types, and other properties of a table's shape."""
