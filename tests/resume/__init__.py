"""The reader may leave and the gateway may die: one durable log serves whoever comes back."""
