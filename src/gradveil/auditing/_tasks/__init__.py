"""What differs between images, tables and text in an audit."""

from ._scored import scored

__all__ = ["scored"]
