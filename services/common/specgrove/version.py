"""The version of specgrove, the same in every service; images hold no installed package that could be asked."""

VERSION = "0.1.0"
