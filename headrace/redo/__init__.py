"""Redo: segments, archiving, dictionary, mining. Knows records, positions and checksums, not the bytes' format."""
