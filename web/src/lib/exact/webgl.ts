// Tiles by WebGL 2: the rule of factors.ts on a graphics card, in single precision, read back as numbers. Used where a card
// computes; a renderer that is itself a program (SwiftShader, llvmpipe) is slower than JavaScript, and left alone. `?compute=webgl`
// or `?compute=javascript` in the page's address overrides that. The first tile is held to JavaScript's.
import type { LayerInfo } from "../api/types";
import type { Floats, LayerFactors, Plan } from "./factors";

const WIDE = 2048; // texels of a row of every texture: numbers lie in it one after another
const KEPT = 3; // layers on the card
const PASS = 1 << 26; // products of one draw: a card takes some milliseconds, and the system stops one that takes seconds
const LONGEST = 1 << 22; // cells behind one row of blocks: more are JavaScript's, row by row
const NEAR = 1e-4; // of the first tile: single precision is off by 1e-6, a driver that computes otherwise by more
const HIDDEN = -1; // where no cell is visible: a card need not know NaN
const SOFTWARE = /swiftshader|llvmpipe|softpipe|software|basic render/i;

const VERTEX = `#version 300 es
void main() { gl_Position = vec4(gl_VertexID == 1 ? 3. : -1., gl_VertexID == 2 ? 3. : -1., 0., 1.); }`;

// A texel of the result is four blocks that lie side by side.
const FRAGMENT = `#version 300 es
precision highp float; precision highp int; precision highp sampler2D; precision highp usampler2D;
uniform sampler2D q, k, lse, bias;
uniform usampler2D runs, dense;
uniform int top, bottom, left, right, span, perBlock, columns, quads, keys, qStart, kStart, rowStart, denseStart, biasStart, rowBytes;
uniform float scale, softcap;
uniform bool largest;
out vec4 blocks;
ivec2 at(int i) { return ivec2(i % ${WIDE}, i / ${WIDE}); }
void main() {
  vec4 four;
  int begin = top + int(gl_FragCoord.y) * span, end = min(bottom, begin + span), picked = min(perBlock, end - begin);
  for (int j = 0; j < 4; j++) {
    int column = 4 * int(gl_FragCoord.x) + j, first = left + column * span, last = min(right, first + span), seen = 0;
    float sum = 0., most = ${HIDDEN}.;
    for (int i = 0; i < picked && column < columns; i++) {
      int query = begin + ((2 * i + 1) * (end - begin)) / (2 * picked);
      uvec2 run = texelFetch(runs, at(query), 0).rg;
      float rowLse = texelFetch(lse, at(rowStart + query), 0).r, rowSum = 0.;
      for (int key = max(first, int(run.x)); key < min(last, int(run.y)); key++) {
        if (denseStart >= 0 && (texelFetch(dense, at(denseStart + query * rowBytes + (key >> 3)), 0).r & (128u >> uint(key & 7))) == 0u) continue;
        vec4 products = vec4(0.);
        for (int d = 0; d < quads; d++) products += texelFetch(q, at(qStart + query * quads + d), 0) * texelFetch(k, at(kStart + key * quads + d), 0);
        float score = scale * ((products.x + products.y) + (products.z + products.w));
        if (softcap > 0.) score = softcap * tanh(score / softcap);
        if (biasStart >= 0) score += texelFetch(bias, at(biasStart + query * keys + key), 0).r;
        float weight = exp(score - rowLse);
        rowSum += weight;
        most = max(most, weight);
        seen++;
      }
      sum += rowSum;
    }
    four[j] = seen == 0 ? ${HIDDEN}. : largest ? most : sum / float(seen);
  }
  blocks = four;
}`;

type Textures = Record<"q" | "k" | "lse" | "runs" | "dense" | "bias", WebGLTexture | null>;
const UNITS: (keyof Textures)[] = ["q", "k", "lse", "bias", "runs", "dense"];

/** What computes tiles: a card, or nothing, and then JavaScript does. */
export class Engine {
  static #one: Engine | null = null;
  #gl: WebGL2RenderingContext | null = null;
  #uniforms: Record<string, WebGLUniformLocation | null> = {};
  #layers = new Map<LayerFactors, Textures>();
  #held = false; // whether a tile was compared with JavaScript's
  #turn: Promise<unknown> = Promise.resolve(); // one region at a time: there is one target
  #drawn: WebGLTexture | null = null;
  #most = 0; // texels along a side
  #wide = 0;
  #high = 0;
  #cells = new Float32Array(0);
  readonly #unread: string;
  #words = "";

  /** The page's only engine: a browser gives few contexts. */
  static shared(): Engine {
    return (Engine.#one ??= new Engine(typeof location === "undefined" ? "" : (new URLSearchParams(location.search).get("compute") ?? "")));
  }

  /** `wanted`: "webgl" takes any renderer, "javascript" none. */
  private constructor(wanted: string) {
    const known = ["", "webgl", "javascript"].includes(wanted);
    this.#unread = known ? "" : `; compute=${wanted.slice(0, 40)} in the address is neither webgl nor javascript`;
    if (wanted === "javascript") this.#words = script("as the address has it");
    else if (typeof document === "undefined") this.#words = script("as there is no page here");
    else this.#words = this.#open(wanted === "webgl");
  }

  /** What computes tiles, and why. */
  get words(): string {
    return this.#words + this.#unread;
  }

  /** A region's blocks, NaN where nothing is visible; null where JavaScript is to compute it. `row`: JavaScript's own weights. */
  async region(
    layer: LayerFactors, shape: LayerInfo, head: number, plan: Plan, row: (query: number) => Float32Array, signal?: AbortSignal,
  ): Promise<Float32Array | null> {
    const { perBlock, left, right } = plan;
    const most = Math.max(layer.q.length / Math.min(4, layer.width), layer.k.length / Math.min(4, layer.width), layer.bias?.values.length ?? 0, layer.dense?.bits.length ?? 0);
    if (!this.#gl || layer.q instanceof Float64Array || perBlock * (right - left) > LONGEST || most > WIDE * this.#most) return null;
    const before = this.#turn;
    let leave = () => {};
    this.#turn = new Promise<void>((resolve) => (leave = resolve));
    await before;
    try {
      signal?.throwIfAborted();
      if (!this.#gl) return null;
      if (!this.#held) {
        const { top, bottom } = plan;
        const few = { ...plan, span: 1, perBlock: 1, bottom: Math.min(bottom, top + 8), rows: Math.min(bottom - top, 8), columns: right - left };
        const cells = await this.#draw(layer, shape, head, few, signal);
        for (let query = top; query < few.bottom; query++) {
          const want = row(query).subarray(left, right);
          want.forEach((weight, c) => {
            const cell = cells[(query - top) * few.columns + c]!;
            if (Number.isNaN(weight) !== Number.isNaN(cell) || Math.abs(weight - cell) > NEAR) throw new Error(`${cell} where JavaScript has ${weight}`);
          });
        }
        this.#held = true;
      }
      return await this.#draw(layer, shape, head, plan, signal);
    } catch (error) {
      if (signal?.aborted) throw error;
      this.#gl = null;
      this.#words = script(`as WebGL failed here (${error instanceof Error ? error.message : String(error)})`);
      return null;
    } finally {
      leave();
    }
  }

  #open(anyRenderer: boolean): string {
    const gl = document.createElement("canvas").getContext("webgl2", { antialias: false, depth: false, powerPreference: "high-performance" });
    if (!gl) return script("as this browser has no WebGL 2 here");
    const info = gl.getExtension("WEBGL_debug_renderer_info");
    const renderer = String(gl.getParameter(info ? info.UNMASKED_RENDERER_WEBGL : gl.RENDERER)).slice(0, 120);
    const close = (words: string) => {
      gl.getExtension("WEBGL_lose_context")?.loseContext();
      return words;
    };
    if (!gl.getExtension("EXT_color_buffer_float")) return close(script(`as WebGL here has no targets of floats (${renderer})`));
    if (!anyRenderer && SOFTWARE.test(renderer)) return close(script(`as WebGL has no graphics card here, and is slower (${SOFTWARE.exec(renderer)![0]})`));
    const program = gl.createProgram();
    for (const [kind, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]] as const) {
      const shader = gl.createShader(kind)!;
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS)) return close(script(`as WebGL here takes no program of ours (${renderer})`));
    gl.useProgram(program);
    for (let i = 0; i < gl.getProgramParameter(program, gl.ACTIVE_UNIFORMS); i++) {
      const { name } = gl.getActiveUniform(program, i)!;
      this.#uniforms[name] = gl.getUniformLocation(program, name);
    }
    UNITS.forEach((name, unit) => gl.uniform1i(this.#uniforms[name]!, unit));
    gl.bindFramebuffer(gl.FRAMEBUFFER, gl.createFramebuffer());
    gl.bindVertexArray(gl.createVertexArray());
    this.#most = gl.getParameter(gl.MAX_TEXTURE_SIZE);
    this.#gl = gl;
    return `by WebGL, in single precision (${renderer})`;
  }

  async #draw(layer: LayerFactors, shape: LayerInfo, head: number, plan: Plan, signal?: AbortSignal): Promise<Float32Array> {
    const gl = this.#gl!;
    const { num_heads, num_kv_heads, num_queries, num_keys } = shape;
    const { rows, columns, span, perBlock, left, right } = plan;
    const [wide, quads] = [Math.ceil(columns / 4), Math.ceil(layer.width / 4)];
    this.#bind(layer, num_queries);
    this.#target(wide, rows);
    const set = (values: Record<string, number>) => Object.entries(values).forEach(([name, value]) => gl.uniform1i(this.#uniforms[name]!, value));
    const rowBytes = Math.ceil(num_keys / 8);
    set({
      top: plan.top, bottom: plan.bottom, left, right, span, perBlock, columns, quads, keys: num_keys, rowBytes,
      largest: Number(plan.largest), rowStart: head * num_queries, qStart: head * num_queries * quads,
      kStart: Math.floor((head * num_kv_heads) / num_heads) * num_keys * quads,
      denseStart: layer.dense ? (layer.dense.heads === 1 ? 0 : head * num_queries * rowBytes) : -1,
      biasStart: layer.bias ? (layer.bias.heads === 1 ? 0 : head * num_queries * num_keys) : -1,
    });
    gl.uniform1f(this.#uniforms["scale"]!, layer.scale);
    gl.uniform1f(this.#uniforms["softcap"]!, layer.softcap ?? 0);
    const strip = Math.max(1, Math.floor(PASS / (perBlock * (right - left) * layer.width)));
    if (this.#cells.length < rows * wide * 4) this.#cells = new Float32Array(rows * wide * 4);
    for (let begin = 0; begin < rows; begin += strip) {
      const height = Math.min(strip, rows - begin);
      gl.viewport(0, 0, wide, rows);
      gl.scissor(0, begin, wide, height);
      gl.enable(gl.SCISSOR_TEST);
      gl.drawArrays(gl.TRIANGLES, 0, 3);
      gl.readPixels(0, begin, wide, height, gl.RGBA, gl.FLOAT, this.#cells, begin * wide * 4);
      if (begin + height === rows) break;
      await new Promise((resolve) => setTimeout(resolve)); // the page answers the reader in between
      signal?.throwIfAborted();
    }
    const [fault, cells] = [gl.getError(), this.#cells];
    if (fault || gl.isContextLost()) throw new Error(gl.isContextLost() ? "its context was lost" : `error ${fault}`);
    const values = new Float32Array(rows * columns);
    for (let r = 0; r < rows; r++) {
      for (let c = 0; c < columns; c++) {
        const cell = cells[r * wide * 4 + c]!;
        values[r * columns + c] = cell === HIDDEN ? NaN : cell;
      }
    }
    return values;
  }

  /** A target that holds so many texels, four blocks each. */
  #target(wide: number, rows: number): void {
    const gl = this.#gl!;
    if (wide <= this.#wide && rows <= this.#high) return;
    [this.#wide, this.#high] = [Math.max(wide, this.#wide), Math.max(rows, this.#high)];
    gl.deleteTexture(this.#drawn);
    gl.activeTexture(gl.TEXTURE0 + UNITS.length);
    this.#drawn = this.#texture(gl.RGBA32F, this.#wide, this.#high);
    gl.framebufferTexture2D(gl.FRAMEBUFFER, gl.COLOR_ATTACHMENT0, gl.TEXTURE_2D, this.#drawn, 0);
    if (gl.checkFramebufferStatus(gl.FRAMEBUFFER) !== gl.FRAMEBUFFER_COMPLETE) throw new Error("no floating-point target");
  }

  #texture(format: number, wide: number, high: number): WebGLTexture {
    const gl = this.#gl!;
    const texture = gl.createTexture();
    gl.bindTexture(gl.TEXTURE_2D, texture);
    for (const filter of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) gl.texParameteri(gl.TEXTURE_2D, filter, gl.NEAREST);
    gl.texStorage2D(gl.TEXTURE_2D, 1, format, wide, high);
    return texture;
  }

  /** Puts a layer's numbers on the card, and makes them what the next draw reads. */
  #bind(layer: LayerFactors, numQueries: number): void {
    const gl = this.#gl!;
    let textures = this.#layers.get(layer);
    if (!textures) {
      if (this.#layers.size >= KEPT) {
        const [oldest, old] = this.#layers.entries().next().value!;
        this.#layers.delete(oldest);
        for (const name of UNITS) gl.deleteTexture(old[name]);
      }
      const put = (values: Float32Array | Uint32Array | Uint8Array, each: number, inner: number, outer: number, kind: number) => {
        const high = Math.max(1, Math.ceil(values.length / each / WIDE));
        const whole = values.slice(0, 0).constructor as new (length: number) => typeof values;
        const padded = new whole(high * WIDE * each);
        padded.set(values);
        const texture = this.#texture(inner, WIDE, high);
        gl.texSubImage2D(gl.TEXTURE_2D, 0, 0, 0, WIDE, high, outer, kind, padded);
        return texture;
      };
      const runs = new Uint32Array(2 * numQueries);
      for (let i = 0; i < numQueries; i++) runs.set([layer.start[i]!, layer.stop[i]!], 2 * i);
      gl.activeTexture(gl.TEXTURE0 + UNITS.length);
      gl.pixelStorei(gl.UNPACK_ALIGNMENT, 1);
      const { dense, bias, width } = layer;
      textures = {
        q: put(inQuads(layer.q, width), 4, gl.RGBA32F, gl.RGBA, gl.FLOAT),
        k: put(inQuads(layer.k, width), 4, gl.RGBA32F, gl.RGBA, gl.FLOAT),
        lse: put(Float32Array.from(layer.lse), 1, gl.R32F, gl.RED, gl.FLOAT),
        bias: bias && put(Float32Array.from(bias.values), 1, gl.R32F, gl.RED, gl.FLOAT),
        runs: put(runs, 2, gl.RG32UI, gl.RG_INTEGER, gl.UNSIGNED_INT),
        dense: dense && put(Uint8Array.from(dense.bits), 1, gl.R8UI, gl.RED_INTEGER, gl.UNSIGNED_BYTE),
      };
      this.#layers.set(layer, textures);
    }
    for (const [unit, name] of UNITS.entries()) {
      gl.activeTexture(gl.TEXTURE0 + unit);
      gl.bindTexture(gl.TEXTURE_2D, textures[name]);
    }
  }
}

/** Vectors of `width` numbers, each filled up with zeros to a multiple of four. */
function inQuads(vectors: Floats, width: number): Float32Array {
  if (width % 4 === 0 && vectors instanceof Float32Array) return vectors;
  const [wide, count] = [4 * Math.ceil(width / 4), vectors.length / width];
  const out = new Float32Array(count * wide);
  for (let i = 0; i < count; i++) out.set(vectors.subarray(i * width, (i + 1) * width), i * wide);
  return out;
}

function script(why: string): string {
  return `by JavaScript, in double precision, ${why}`;
}
