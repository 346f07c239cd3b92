// A snapshot as studio/outside/snapshot.py packs it, by hand: two heads of four tokens, exact, or in blocks with links.
type Arrays = Record<string, [Uint8Array | Uint32Array | Float32Array, number[]]>;

export const ID = "c0ffee";

/** An envelope as the server makes it: "MHB1", length, padded header, arrays at multiples of 8 bytes. */
export function envelope(header: object, arrays: Arrays): Uint8Array {
  let offset = 0;
  const list = Object.entries(arrays).map(([name, [data, shape]]) => {
    const dtype = data instanceof Uint8Array ? "uint8" : data instanceof Uint32Array ? "uint32" : "float32";
    const entry = { name, dtype, shape, offset };
    offset = Math.ceil((offset + data.byteLength) / 8) * 8;
    return entry;
  });
  let text = JSON.stringify({ ...header, arrays: list });
  text += " ".repeat((8 - ((8 + new TextEncoder().encode(text).length) % 8)) % 8);
  const head = new TextEncoder().encode(text);
  const out = new Uint8Array(8 + head.length + offset);
  out.set([77, 72, 66, 49]);
  new DataView(out.buffer).setUint32(4, head.length, true);
  out.set(head, 8);
  Object.values(arrays).forEach(([data], i) => {
    out.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), 8 + head.length + list[i]!.offset);
  });
  return out;
}

const layer = { name: "L0", stack: "", layer: 0, module: "attention", num_heads: 2, num_kv_heads: 1, num_queries: 4, num_keys: 4, crosses: false, reads: "", looks_at: "" };
const tokens = ["a", "b,", 'c"', "d"].map((piece) => ({ piece, text: piece, special: false, sink: false }));
/** The last two tokens are one word. */
export const WORDS = [[0, 1], [1, 2], [2, 4]].map(([begin, end]) => ({ begin, end, text: tokens.slice(begin, end).map(({ text }) => text).join("") }));
const statistic = { name: "entropy", title: "entropy", unit: "nats", low: 0, high: null, meaning: "", source: "" };

function card(head: string) {
  return {
    head, layer: "L0", kv_group: 0, shares_with: [], exact: "exact", because: "", caveat: "",
    levels: [["entropy", 2, null]], links: [[3, 1, 0.75]],
  };
}

async function zipped(bytes: Uint8Array): Promise<Uint8Array> {
  const stream = new Blob([bytes as Uint8Array<ArrayBuffer>]).stream().pipeThrough(new CompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

export async function saved(level: 0 | 1, exact = true): Promise<ArrayBuffer> {
  const heads = ["L0H0", "L0H1"];
  const atlas = {
    recording: ID, text: 0, statistics: [statistic], roles_because: "", caveat: "", exact: "exact",
    heads: heads.map((head, index) => ({ head, stack: "", layer: 0, index, kv_group: 0, role: null, values: [index ? null : 1.5] })),
  };
  const header = {
    atlas, cards: heads.map(card),
    maps: {
      level, exact, links: level ? 2 : 0, coding: level ? "steps8" : "steps16",
      words: { mean: "mean of 2 x 2 cells", max: "largest of 4 x 4 cells", links: "the 2 strongest of each row" },
    },
  };
  const packed = await zipped(envelope(header, level ? blocks() : cells()));
  const info = { id: ID, text: 0, num_texts: 1, layers: [layer], tokens, words: WORDS, min_level: level, max_level: level, notes: {} };
  const contents = { workspace: { opened: ID }, infos: [info], words: "2 heads on 4 tokens" };
  const head = await zipped(new TextEncoder().encode(JSON.stringify(contents)));
  const whole = envelope({ format: 3 }, { head: [head, [head.length]], text0: [packed, [packed.length]] });
  return whole.buffer as ArrayBuffer;
}

/** Exact to 1/65,534: head 0 looks at itself, head 1 evenly at what it can see. */
function cells(): Arrays {
  const steps: number[] = [];
  for (const even of [false, true]) {
    for (let q = 0; q < 4; q++) {
      for (let k = 0; k < 4; k++) steps.push(k > q ? 65_535 : even ? Math.round(65_534 / (q + 1)) : q === k ? 65_534 : 0);
    }
  }
  return { mean0: [planes(steps), [2, 2, 4, 4]], visible0: [new Uint32Array([1, 2, 3, 4]), [1, 4]], missing0: [new Float32Array([0, 0, 0, 0, 0, 0.25, 0, 0]), [2, 4]] };
}

/** Blocks of 2 x 2 in square-root steps, rows as differences; the upper right one is absent. */
function blocks(): Arrays {
  const map = [127, 255, 254 - 127, 0]; // rows [127, absent], [254, absent - 255 = 255 -> 255 + 0]
  return {
    mean0: [new Uint8Array([...map, ...map]), [2, 2, 2]],
    mean_peaks0: [new Float32Array([0.5, 1]), [2]],
    max0: [new Uint8Array([254, 254]), [2, 1, 1]],
    max_peaks0: [new Float32Array([0.9, 1]), [2]],
    keys0: [planes([0, 0, 0, 1, 1, 1, 1, 2, ...Array<number>(8).fill(0)]), [2, 2, 4, 2]],
    links0: [planes([65_535, 0, 6_554, 58_981, 13_107, 32_768, 1, 65_534, ...Array<number>(8).fill(0)]), [2, 2, 4, 2]],
    visible0: [new Uint32Array([1, 2, 3, 4]), [1, 4]],
  };
}

function planes(values: number[]): Uint8Array {
  return new Uint8Array([...values.map((v) => v >> 8), ...values.map((v) => v & 255)]);
}
