"""What each head does, in words: labels with evidence."""
