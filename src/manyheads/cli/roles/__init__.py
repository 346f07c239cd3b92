"""`manyheads roles`: what each head does, in words and with evidence."""
