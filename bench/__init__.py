"""What ``make bench`` measures: ratios within one run, never seconds."""
