"""The report stage: what does a person look at?"""
