"""What templates of the desk ask for."""
