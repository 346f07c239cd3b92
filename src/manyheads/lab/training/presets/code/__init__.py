"""The preset `code`: a small decoder that reads Python source; it becomes the bundled model `tiny-code`."""
