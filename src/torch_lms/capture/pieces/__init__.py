"""Operations larger than the limit run in pieces, with the same bits, and their results stay in pieces (N27)."""
