"""A database for the tests of this package that read logs in this process."""

from tests.durability.conftest import bench, database

__all__ = ["bench", "database"]
