"""Figures of KV events on a study's page."""
