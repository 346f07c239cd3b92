"""What each head does, in numbers: one table of statistics, sums that add, the table that measure returns."""
