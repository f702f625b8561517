"""The command line: configuration, building a run, records, progress."""
