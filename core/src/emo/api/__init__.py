"""Pydantic models of every document that EMO prints and of every message that its parts exchange.

A document names its kind and version in the field ``schema`` (``emo.analysis/v1``). Within a
version fields are only ever added. The models are the contract: what a command prints is
validated against them by the tests, so that the command itself need not import pydantic.
"""
