"""Specs inside other people's libraries. Each module needs the library it is named after."""
