from tests.resume.conftest import stack_of_two

__all__ = ["stack_of_two"]
