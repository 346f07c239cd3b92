import { describe, expect, it } from "vitest";
import { Client } from "../../src/lib/api/client";
import { float32 } from "../../src/lib/api/envelope";
import { FileSource } from "../../src/lib/api/file-source";
import { StudioError } from "../../src/lib/api/source";
import { ID, saved } from "./saved";

const text = (bytes: ArrayBuffer) => new TextDecoder().decode(bytes);

describe("a saved page with every weight", () => {
  const client = new Client(new FileSource(saved(0)));

  it("says what was open, and describes it", async () => {
    expect((await client.workspace()).opened).toBe(ID);
    expect((await client.recording(ID)).num_texts).toBe(1);
    expect((await client.atlas(ID)).heads.map((head) => head.head)).toEqual(["L0H0", "L0H1"]);
  });

  it("gives a tile of cells, where what cannot be seen is absent and not 0", async () => {
    const tile = await client.tile(ID, "L0H1", 0, 0, 0);
    const { data, shape } = float32(tile, "values");
    expect(shape).toEqual([4, 4]);
    expect(data[1]).toBeNaN();
    expect(data[4]).toBeCloseTo(0.5, 4);
    expect(data[15]).toBeCloseTo(0.25, 4);
    expect(tile.header.exact).toBe(true);
  });

  it("gives a whole row, how many keys it sees, and what went to no token", async () => {
    const row = await client.row(ID, "L0H1", 1);
    expect(Array.from(float32(row, "weights").data.slice(0, 2))).toEqual([0.5, 0.5]);
    expect(row.header).toMatchObject({ visible: 2, missing: 0.25, whole: true });
  });

  it("merges a word's row in every head: key pieces summed, query pieces averaged, what is not seen absent", async () => {
    const { header, arrays } = await client.wordRow(ID, 3, ":");
    expect(header).toMatchObject({ heads: ["L0H0", "L0H1"], begin: 2, end: 4, keys: [0, 3], exact: true });
    const [weights, even] = [arrays["weights"]!, arrays["even"]!];
    expect(weights.shape).toEqual([2, 3]);
    // Rows 2 and 3 of the second head are even over three and four keys; the first head looks at itself.
    const row = [(1 / 3 + 1 / 4) / 2, (1 / 3 + 1 / 4) / 2, (1 / 3 + 2 / 4) / 2];
    [0, 0, 1, ...row].forEach((value, i) => expect(weights.data[i]).toBeCloseTo(value, 4));
    row.forEach((value, i) => expect(even.data[i]).toBeCloseTo(value, 4));
    const first = (await client.wordRow(ID, 0, ":")).arrays["weights"]!.data;
    expect(Array.from(first.slice(0, 3))).toEqual([1, NaN, NaN]);
    await expect(new Client(new FileSource(saved(1))).wordRow(ID, 0, ":")).rejects.toThrow("not the rows of words");
  });

  it("puts a head's card together from what is said once", async () => {
    const card = await client.headCard(ID, "L0H0");
    expect(card.values[0]).toMatchObject({ value: 1.5, chance: 2, page: null, statistic: { name: "entropy", unit: "nats" } });
    expect(card.links).toEqual([{ query: 3, key: 1, weight: 0.75 }]);
    expect(card.layer.num_keys).toBe(4);
  });

  it("makes thumbnails whose bytes and peaks mean what the server's mean", async () => {
    const { header, arrays } = await client.thumbnails(ID);
    expect(header["heads"]).toEqual(["L0H0", "L0H1"]);
    expect(arrays["maps"]!.shape).toEqual([2, 4, 4]);
    expect(Array.from(arrays["maps"]!.data.slice(0, 6))).toEqual([254, 255, 255, 255, 0, 254]);
    expect(arrays["peaks"]!.data[1]).toBeCloseTo(1, 4);
  });

  it("writes tables, with quotes where a token has a comma or a quote", async () => {
    const window = text((await client.window(ID, "L0H0", "csv", "1:3", ":")).bytes).split("\n");
    expect(window[0]).toBe("query,key,query_token,key_token,weight");
    expect(window[2]).toBe('1,1,"b,","b,",1');
    expect(window[5]).toBe('2,2,"c""","c""",1');
    expect(text((await client.table(ID, "csv")).bytes)).toBe("head,stack,layer,index,module,entropy\nL0H0,,0,0,attention,1.5\nL0H1,,0,1,attention,\n");
    expect(JSON.parse(text((await client.table(ID, "json")).bytes))[1]).toMatchObject({ head: "L0H1", entropy: null });
  });
});

describe("a saved page with blocks and links", () => {
  const client = new Client(new FileSource(saved(1)));

  it("gives blocks at its own level, and says what they are", async () => {
    const tile = await client.tile(ID, "L0H0", 1, 0, 0);
    const { data, shape } = float32(tile, "values");
    expect(shape).toEqual([2, 2]);
    expect(data[0]).toBeCloseTo(0.5 * 0.25, 5);
    expect(data[1]).toBeNaN();
    expect(data[2]).toBeCloseTo(0.5, 5);
    expect(tile.header.words).toBe("mean of 2 x 2 cells");
  });

  it("repeats its blocks where finer cells are asked for, and pools them where coarser", async () => {
    const fine = float32(await client.tile(ID, "L0H0", 0, 0, 0), "values");
    expect(fine.shape).toEqual([4, 4]);
    expect(fine.data[5]).toBeCloseTo(0.125, 5);
    expect(fine.data[3]).toBeNaN();
    const coarse = float32(await client.tile(ID, "L0H0", 2, 0, 0), "values");
    expect(coarse.shape).toEqual([1, 1]);
    expect(coarse.data[0]).toBeCloseTo((0.125 + 0.5) / 2, 5);
    const largest = await client.tile(ID, "L0H0", 1, 0, 0, { how: "max" });
    expect(float32(largest, "values").data[3]).toBeCloseTo(0.9, 5);
    expect(largest.header.words).toBe("largest of 4 x 4 cells");
  });

  it("knows the strongest of a row and says that the others are not here", async () => {
    const row = await client.row(ID, "L0H0", 2);
    const weights = float32(row, "weights").data;
    expect(weights[0]).toBeNaN();
    expect(weights[1]).toBeCloseTo(0.2, 4);
    expect(weights[2]).toBeCloseTo(0.5, 4);
    expect(row.header).toMatchObject({ whole: false, visible: 3, words: expect.stringContaining("not in this page") });
  });
});

describe("what a saved page cannot do", () => {
  const client = new Client(new FileSource(saved(1)));
  const words = async (request: Promise<unknown>) => {
    const error = await request.then(() => null, (problem: unknown) => problem);
    expect(error).toBeInstanceOf(StudioError);
    return (error as StudioError).problem.words;
  };

  it("is said in plain words", async () => {
    expect(await words(client.startRecording({ model: "minilm", text: "other" }))).toContain("manyheads studio");
    expect(await words(client.lessons())).toContain("no model behind it");
    expect(await words(client.recording("beef"))).toContain("one recording");
    expect(await words(client.recording(ID, 3))).toContain("2 heads on 4 tokens");
    expect(await words(client.headCard(ID, "L9H9"))).toContain("no head L9H9");
    expect(await words(client.window(ID, "L0H0", "csv", ":", ":"))).toContain("blocks of cells");
    expect(await words(client.table(ID, "parquet"))).toContain(".csv");
    expect(await words(client.tile(ID, "L0H0", 1, 4, 0))).toContain("no tile");
  });

  it("is said where the snapshot itself cannot be read", async () => {
    expect(await words(new Client(new FileSource(new ArrayBuffer(4))).workspace())).toContain("cannot be read");
  });
});
