"""Records of an apply process's tables at the destination, and the operations that change them."""
