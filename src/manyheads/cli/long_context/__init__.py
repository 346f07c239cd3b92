"""`manyheads split` and `heads`: which heads need the whole context, and the lists of heads of other projects."""
