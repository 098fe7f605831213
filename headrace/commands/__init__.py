"""What single commands of the command line do."""
