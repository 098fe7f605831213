"""What a component keeps on its disk, for its own next life."""
