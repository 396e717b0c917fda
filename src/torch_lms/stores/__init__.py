"""Lower tiers that hold the bytes of evicted pages: page-locked host memory and disk, under one contract (``base``)."""
