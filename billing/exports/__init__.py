"""The ledger for finance: one source of rows, a module a format, and what says that all is there."""
