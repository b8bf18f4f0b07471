"""Judge an error line by its likeness to labelled lines, where the table's rules say nothing or something unlikely.

Rules know the wordings that their authors have seen. A linear model of words and pairs of words, learned from some ten
thousand labelled lines, knows what wordings have in common (ADR 172). It is a second opinion: it decides only where its
own class is clearly likelier than what the rules found. No part of it reads the lines of healthy processes.
"""
