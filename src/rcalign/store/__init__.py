"""What lies on disk: run folders, sweep folders, records, results, locks, and the folders of other programs."""
