// Stands for d3-scale-chromatic in the page's script (vite.config.ts): charts of this page name their own colours, and never one of
// Plot's schemes, for which it would bring 6 kB.
function none(): never {
  throw new Error("Charts on this page use no colour scheme of Plot.");
}

export {
  none as interpolateBlues, none as interpolateBrBG, none as interpolateBuGn, none as interpolateBuPu, none as interpolateCividis,
  none as interpolateCool, none as interpolateCubehelixDefault, none as interpolateGnBu, none as interpolateGreens,
  none as interpolateGreys, none as interpolateInferno, none as interpolateMagma, none as interpolateOrRd, none as interpolateOranges,
  none as interpolatePRGn, none as interpolatePiYG, none as interpolatePlasma, none as interpolatePuBu, none as interpolatePuBuGn,
  none as interpolatePuOr, none as interpolatePuRd, none as interpolatePurples, none as interpolateRainbow, none as interpolateRdBu,
  none as interpolateRdGy, none as interpolateRdPu, none as interpolateRdYlBu, none as interpolateRdYlGn, none as interpolateReds,
  none as interpolateSinebow, none as interpolateSpectral, none as interpolateTurbo, none as interpolateViridis, none as interpolateWarm,
  none as interpolateYlGn, none as interpolateYlGnBu, none as interpolateYlOrBr, none as interpolateYlOrRd,
  none as schemeAccent, none as schemeBlues, none as schemeBrBG, none as schemeBuGn, none as schemeBuPu, none as schemeCategory10,
  none as schemeDark2, none as schemeGnBu, none as schemeGreens, none as schemeGreys, none as schemeObservable10, none as schemeOrRd,
  none as schemeOranges, none as schemePRGn, none as schemePaired, none as schemePastel1, none as schemePastel2, none as schemePiYG,
  none as schemePuBu, none as schemePuBuGn, none as schemePuOr, none as schemePuRd, none as schemePurples, none as schemeRdBu,
  none as schemeRdGy, none as schemeRdPu, none as schemeRdYlBu, none as schemeRdYlGn, none as schemeReds, none as schemeSet1,
  none as schemeSet2, none as schemeSet3, none as schemeSpectral, none as schemeTableau10, none as schemeYlGn, none as schemeYlGnBu,
  none as schemeYlOrBr, none as schemeYlOrRd,
};
