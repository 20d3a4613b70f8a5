"""Plan: which experiments does this study have?"""
