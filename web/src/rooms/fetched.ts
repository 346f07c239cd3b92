// Parts of the page that are fetched when they are opened: training.js, which also explains a head (Explain), and circuit.js. They are
// two: what these share with the page stays in studio.js, and a third would make the bundler move that into one more file, which a
// notebook and a page without a server do not have.
export const fetched = { training: () => import("./Training.svelte"), circuit: () => import("./Circuit.svelte") };
