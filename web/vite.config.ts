// One ES module and one stylesheet with fixed names, so that the page, a notebook and a single file can all name them; and beside
// them, by `--mode exact` and so on, the programs that a page loads when it needs them (src/lib/api/program.ts).
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";
import { leanOpenSeadragon } from "./dev/lean-openseadragon.ts";

const PROGRAMS: Record<string, string> = { exact: "src/lib/exact/program.ts", play: "src/play/program.ts", cells: "src/lib/lesson-cells/program.ts" };

export default defineConfig(({ mode }) => ({
  plugins: [svelte(), leanOpenSeadragon()],
  resolve: { alias: { "d3-geo": "/src/lib/draw/no-geography.ts", "d3-scale-chromatic": "/src/lib/draw/no-schemes.ts" } },
  build: {
    outDir: "../src/manyheads/studio/static",
    copyPublicDir: !PROGRAMS[mode],
    emptyOutDir: false, // BUILT_FROM is written beside; names never change, so nothing stale stays
    target: "es2022",
    cssCodeSplit: false,
    assetsInlineLimit: 20_480, // the formulas' font: a notebook and a single file cannot fetch it
    modulePreload: false,
    sourcemap: false,
    reportCompressedSize: false,
    chunkSizeWarningLimit: 2000,
    rollupOptions: {
      input: PROGRAMS[mode] ?? "src/main.ts",
      preserveEntrySignatures: "allow-extension", // the default export is what anywidget loads
      output: {
        format: "es",
        entryFileNames: PROGRAMS[mode] ? `${mode}.js` : "studio.js",
        assetFileNames: "studio[extname]",
        chunkFileNames: (chunk) => `${chunk.name.toLowerCase()}.js`, // a room that is loaded when it is opened: training.js
        codeSplitting: !PROGRAMS[mode],
      },
    },
  },
  test: { include: ["tests/**/*.test.ts"], css: true }, // else a stylesheet that a test reads is empty
}));
