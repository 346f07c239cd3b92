"""Loading models, and the one seam through which every attention call is seen."""
