"""The analyse stage: what does it amount to, and may it be believed?"""
