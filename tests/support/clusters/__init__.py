"""Whole topologies on Ray and Spark: on one machine or several, by the command line, and with faults."""
