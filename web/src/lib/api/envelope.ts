// The binary format of answers that carry arrays: "MHB1", the header's length (uint32, little-endian), the header (JSON,
// padded), then the arrays, each at a multiple of 8 bytes from the end of the header. Arrays are views of the answer's
// bytes, never copies.

export type Numbers = Uint8Array | Uint16Array | Uint32Array | Int32Array | Float32Array | Float64Array;

export interface EnvelopeArray {
  name: string;
  dtype: string;
  shape: number[];
  data: Numbers;
}

export interface Header {
  arrays: { name: string; dtype: string; shape: number[]; offset: number }[];
  /** What the numbers are, in words for the reader. */
  words?: string;
  /** False where rows were sampled. */
  exact?: boolean;
  [field: string]: unknown;
}

export interface Envelope {
  header: Header;
  arrays: Record<string, EnvelopeArray>;
}

const VIEWS: Record<string, new (buffer: ArrayBuffer, offset: number, length: number) => Numbers> = {
  uint8: Uint8Array,
  uint16: Uint16Array,
  uint32: Uint32Array,
  int32: Int32Array,
  float32: Float32Array,
  float64: Float64Array,
};

/** The header and arrays of an envelope. Throws an Error for bytes of another format, a cut-off header or an unknown dtype. */
export function parseEnvelope(buffer: ArrayBuffer): Envelope {
  const view = new DataView(buffer);
  const magic = buffer.byteLength < 8 ? "" : String.fromCharCode(...new Uint8Array(buffer, 0, 4));
  if (magic !== "MHB1") throw new Error(`not an MHB1 envelope: it begins with ${JSON.stringify(magic)}`);
  const end = 8 + view.getUint32(4, true);
  if (end > buffer.byteLength) throw new Error("an MHB1 envelope was cut off in its header");
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, end - 8))) as Header;
  const arrays: Record<string, EnvelopeArray> = {};
  for (const { name, dtype, shape, offset } of header.arrays) {
    const View = VIEWS[dtype];
    if (!View) throw new Error(`an MHB1 envelope holds ${name} as ${dtype}, which this page does not know`);
    const length = shape.reduce((a, b) => a * b, 1);
    arrays[name] = { name, dtype, shape, data: new View(buffer, end + offset, length) };
  }
  return { header, arrays };
}

/** The array `name` and its shape. Throws an Error that lists the envelope's arrays if it has no float32 array `name`. */
export function float32(envelope: Envelope, name: string): { data: Float32Array; shape: number[] } {
  const array = envelope.arrays[name];
  if (!(array?.data instanceof Float32Array)) {
    throw new Error(`expected float32 ${name}, got ${Object.keys(envelope.arrays).join(", ") || "nothing"}`);
  }
  return { data: array.data, shape: array.shape };
}
