// Comma-separated values. Its own file because both the saved page's answers (file-source.ts) and the exports use it.

export type CsvRow = readonly (string | number | null)[];

/** Rows as CSV text: cells are quoted where they must be, null is an empty cell, every row ends in `end`. */
export function csvOf(rows: readonly CsvRow[], end = "\n"): string {
  const quoted = (value: string | number | null) => {
    const text = String(value ?? "");
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(quoted).join(",") + end).join("");
}
