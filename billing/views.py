"""Downloads for finance."""
