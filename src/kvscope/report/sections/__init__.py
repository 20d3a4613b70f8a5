"""kvscope's own sections of a study's page, each with its template beside it."""
