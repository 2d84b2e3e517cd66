"""What people look at: the page of `coterie watch`, metrics and status."""
