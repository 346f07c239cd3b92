"""The JSON bodies of the studio's server as types: requests, and answers that no dataclass of the library is already.

`web/openapi.json` is generated from these and `web/src/lib/api/schema.d.ts` from that; a test keeps them equal. `Job`
stands with the jobs, in studio/jobs.py. Numbers that do not exist (NaN, infinity) are null. Positions, heads and layers
count from 0.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
