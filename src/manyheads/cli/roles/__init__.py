"""`manyheads roles`: which head does what, and the words for it that other commands show as well."""
