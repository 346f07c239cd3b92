"""What the studio's server says and is told: every JSON body as a type, from which the page's own types are generated.

`web/openapi.json` is made from these, and `web/src/lib/api/schema.d.ts` from that; a test holds them equal.
Numbers that are not there (NaN, infinity) are null. Positions, heads and layers count from 0.
"""
