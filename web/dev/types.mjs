// Types from web/openapi.json into src/lib/api/schema.d.ts; the first line names the description they were made from, so that
// a test can tell when it has moved on.
import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import openapi, { astToString } from "openapi-typescript";

const description = new URL("../openapi.json", import.meta.url);
const bytes = readFileSync(description);
const digest = createHash("sha256").update(bytes).digest("hex");
const types = astToString(await openapi(description));
writeFileSync(new URL("../src/lib/api/schema.d.ts", import.meta.url), `// openapi.json sha256:${digest}\n${types}`);
