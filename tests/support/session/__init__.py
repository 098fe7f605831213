"""The test session itself: its reports, seeds and units, permitted leftovers, and the packages under test."""
