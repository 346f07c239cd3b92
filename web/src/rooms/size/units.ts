// Numbers of the Size room as `manyheads size` writes them: 68.98 B parameters, 10.00 GiB, 138.0 GB.

export type Scale = readonly [number, string];

export const COUNTS: readonly Scale[] = [[1e12, " T"], [1e9, " B"], [1e6, " M"], [1e3, " k"]];
export const BINARY: readonly Scale[] = [[2 ** 60, " EiB"], [2 ** 50, " PiB"], [2 ** 40, " TiB"], [2 ** 30, " GiB"], [2 ** 20, " MiB"], [2 ** 10, " KiB"]];
export const DECIMAL: readonly Scale[] = [[1e18, " EB"], [1e15, " PB"], [1e12, " TB"], [1e9, " GB"], [1e6, " MB"], [1e3, " kB"]];

export function countOf(value: number, decimals?: number): string {
  return scaled(value, COUNTS, "", decimals);
}

/** A column of bytes in one unit, of which the smallest is a tenth or more, with equally many digits behind each point. */
export function column(values: readonly number[], scales: readonly Scale[]): { texts: string[]; unit: string } {
  const least = Math.min(...values.filter((value) => value > 0));
  const [size, name] = scales.find(([size]) => least >= size / 10) ?? [1, " bytes"];
  const decimals = values.every((value) => Number.isInteger(value / size)) ? 0 : least / size < 100 ? 2 : 1;
  const texts = values.map((value) => (value / size).toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }));
  return { texts, unit: name.trim() };
}

export function gib(value: number): string {
  return scaled(value, BINARY, " B");
}

export function gb(value: number): string {
  return scaled(value, DECIMAL, " B");
}

/** "10.00 GiB (10.74 GB)": the same bytes in powers of 1,024 and of 1,000. */
export function bytesInBoth(value: number): string {
  return value < 1000 ? `${integer(value)} bytes` : `${gib(value)} (${gb(value)})`;
}

/** Three digits without zeros behind the point, for a sentence: "128 KiB", "16.1 GB", "1 GiB". */
export function brief(value: number, scales: readonly Scale[], smallest = " B"): string {
  const [unit, name] = scales.find(([size]) => value >= size * 0.9995) ?? [1, smallest];
  const size = value / unit;
  return (size >= 100 ? integer(size) : String(Number(size.toPrecision(3)))) + name;
}

/** Tokens: "8k" where that is exact, else all digits. */
export function tokens(value: number): string {
  return value >= 1024 ** 2 && value % 1024 ** 2 === 0 ? `${value / 1024 ** 2}M` : value >= 1024 && value % 1024 === 0 ? `${value / 1024}k` : integer(value);
}

export function integer(value: number): string {
  return Math.round(value).toLocaleString("en-US");
}

export function percent(share: number): string {
  if (!Number.isFinite(share)) return "–";
  if (share > 0 && share < 0.001) return "under 0.1 %";
  return `${share >= 0.0995 ? Math.round(share * 100) : (share * 100).toFixed(1)} %`;
}

/** A value in the largest unit that it reaches, with two decimals, or one from 100 on. */
function scaled(value: number, scales: readonly Scale[], smallest: string, decimals?: number): string {
  for (const [unit, name] of scales) {
    if (value < unit) continue;
    const size = value / unit;
    return (decimals !== undefined ? size.toFixed(decimals) : size >= 999.95 ? integer(size) : size.toFixed(size >= 99.995 ? 1 : 2)) + name;
  }
  return integer(value) + smallest;
}
