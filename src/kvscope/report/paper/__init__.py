"""The paper beside a study: its values, ours, and what becomes of its observations."""
