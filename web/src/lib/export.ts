// Saving what is on screen. A page saves by a link that is clicked and dropped, which works in all three homes.

export function saveFile(content: BlobPart, kind: string, name: string): void {
  const url = URL.createObjectURL(new Blob([content], { type: kind }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name.replace(/[^\w.+-]+/g, "-");
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

export async function savePng(canvas: HTMLCanvasElement, name: string): Promise<void> {
  const blob = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve, "image/png"));
  if (blob) saveFile(blob, blob.type, name);
}

export function saveSvg(svg: string, name: string): void {
  saveFile(svg, "image/svg+xml", name);
}

type Row = readonly (string | number | null)[];

export function saveCsv(rows: readonly Row[], name: string): void {
  saveFile(csvOf(rows, "\r\n"), "text/csv", name);
}

/** Rows as lines of cells with commas between: quoted where they must be, empty where there is nothing. */
export function csvOf(rows: readonly Row[], end = "\n"): string {
  const cell = (value: string | number | null) => {
    const text = String(value ?? "");
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",") + end).join("");
}

/** Text as it may stand in XML: escaped, and without the characters that XML has none for. */
export function xml(text: string): string {
  return text
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd")
    .replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd")
    .replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]!);
}
