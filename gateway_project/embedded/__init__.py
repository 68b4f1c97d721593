"""Services that come with the project, for machines that have none: PostgreSQL, Redis, llama.cpp."""
