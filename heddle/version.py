"""The version of this package, where every floor may read it. It never imports anything."""

__version__ = "0.1.0"
