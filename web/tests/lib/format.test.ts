import { describe, expect, it } from "vitest";
import { label, number, percent, short, signed, visible, weight } from "../../src/lib/draw/format";
import { csvOf } from "../../src/lib/api/csv";
import { xml } from "../../src/lib/draw/export";

const token = (piece: string, text = piece, special = false) => ({ piece, text, special, sink: false, unknown: false });

describe("numbers", () => {
  it("are text, and say when there is none", () => {
    expect([weight(0.03125), weight(0), weight(1.2e-7), weight(NaN), weight(null)]).toEqual(["0.0313", "0", "1.20e-7", "none", "none"]);
    expect([number(12345.6), number(37.4249), number(0.03121), number(null)]).toEqual(["12,346", "37.42", "0.03121", "none"]);
    expect([percent(0.384), percent(0.0004, 1), percent(0), percent(undefined)]).toEqual(["38%", "< 0.1%", "0%", "none"]);
    expect([signed(0.0123), signed(-0.5), signed(0)]).toEqual(["+0.0123", "−0.5", "0"]);
  });
});

describe("rows", () => {
  it("are quoted where they must be, and empty where there is nothing", () => {
    expect(csvOf([["a", 'b,"c"'], [1.5, null]])).toBe('a,"b,""c"""\n1.5,\n');
    expect(csvOf([["a\rb", -2]], "\r\n")).toBe('"a\rb",-2\r\n');
  });
});

describe("tokens", () => {
  it("show blanks, line ends and what has no text", () => {
    expect(visible(token("Ġthe", " the"))).toBe("·the");
    expect(visible(token("Ċ", "\n"))).toBe("⏎");
    expect(visible(token("[CLS]", "", true))).toBe("[CLS]");
    expect(visible(token("", ""))).toBe("∅");
    expect(visible(token("x", "a\u0000b\u2028"))).toBe("a\ufffdb\ufffd");
  });

  it("that the model does not know show what was written, and the piece that it reads", () => {
    expect(visible({ ...token("[UNK]", "\u{1f600}"), unknown: true })).toBe("\u{1f600} [UNK]");
    expect(visible({ ...token("[UNK]", ""), unknown: true })).toBe("[UNK]");
    expect(label({ ...token("[UNK]", "x".repeat(40)), unknown: true }, 12)).toBe("xxxxx… [UNK]");
  });

  it("are cut between what people count as characters", () => {
    expect(short("👩‍👩‍👧‍👦👩‍👩‍👧‍👦👩‍👩‍👧‍👦", 3)).toBe("👩‍👩‍👧‍👦👩‍👩‍👧‍👦👩‍👩‍👧‍👦");
    expect(short("👩‍👩‍👧‍👦👩‍👩‍👧‍👦👩‍👩‍👧‍👦👩‍👩‍👧‍👦", 3)).toBe("👩‍👩‍👧‍👦👩‍👩‍👧‍👦…");
    expect(label(token("x".repeat(4000)), 10)).toBe(`${"x".repeat(9)}…`);
  });

  it("are escaped in XML, where some characters cannot stand at all", () => {
    expect(xml("<script>&\"\u0001\ud800")).toBe("&lt;script&gt;&amp;&quot;\ufffd\ufffd");
  });
});
