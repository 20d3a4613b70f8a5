"""The run stage: what happened while one experiment ran?"""
