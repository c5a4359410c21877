"""Settings: their schema, how they are loaded, and how secrets stay masked. Imports none of the other packages."""

from config.errors import ConfigError
from config.load import describe, load
from config.log.text import mask_credentials, secrets_of
from config.settings import Endpointing, Route, Secret, Settings

__all__ = [
    "ConfigError",
    "Endpointing",
    "Route",
    "Secret",
    "Settings",
    "describe",
    "load",
    "mask_credentials",
    "secrets_of",
]
