"""Errors, each one sentence for the user."""


class PackError(Exception):
    """Something about packs failed; the message is one sentence."""


class BadSettings(PackError):
    """Unusable settings: the message names the value, the expected values, and the place."""


class SubmissionRefused(PackError):
    """The batch system refuses the job as it is; the message has its words."""


class QueueFull(PackError):
    """The queue takes no further job of this user now; later it may."""


class NoAnswer(PackError):
    """The batch system does not answer. What was requested may or may not have been done."""
