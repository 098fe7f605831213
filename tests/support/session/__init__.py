"""The session of tests itself: its reports, seeds and units, what it may leave behind, and the packages that it tests."""
