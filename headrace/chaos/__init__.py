"""`headrace chaos`: break a live topology on purpose, wait until it has healed, and check that nothing was harmed."""
