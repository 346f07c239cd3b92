// One ES module and one stylesheet with fixed names, so that the page, a notebook and a single file can all name them.
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

export default defineConfig({
  plugins: [svelte()],
  build: {
    outDir: "../src/manyheads/studio/static",
    emptyOutDir: false, // BUILT_FROM is written beside; names never change, so nothing stale stays
    target: "es2022",
    cssCodeSplit: false,
    assetsInlineLimit: 20_480, // the formulas' font: a notebook and a single file cannot fetch it
    modulePreload: false,
    sourcemap: false,
    reportCompressedSize: false,
    chunkSizeWarningLimit: 2000,
    rollupOptions: {
      input: "src/main.ts",
      preserveEntrySignatures: "strict", // the default export is what anywidget loads
      output: {
        format: "es",
        entryFileNames: "studio.js",
        assetFileNames: "studio[extname]",
        codeSplitting: false,
      },
    },
  },
  test: { include: ["tests/**/*.test.ts"], css: true }, // else a stylesheet that a test reads is empty
});
