// Stands for d3-geo in the page's script (vite.config.ts): its charts draw no maps of the earth, for which Plot would bring 10 kB.
function none(): never {
  throw new Error("Charts on this page have no geographic projection.");
}

/** Plot makes one of these as it loads, and uses it with a projection alone. */
export const geoTransform = (methods: object) => methods;

export {
  none as geoAlbers, none as geoAlbersUsa, none as geoAzimuthalEqualArea, none as geoAzimuthalEquidistant, none as geoCentroid,
  none as geoClipRectangle, none as geoConicConformal, none as geoConicEqualArea, none as geoConicEquidistant, none as geoEqualEarth,
  none as geoEquirectangular, none as geoGnomonic, none as geoGraticule, none as geoGraticule10, none as geoMercator, none as geoOrthographic, none as geoPath,
  none as geoStereographic, none as geoStream, none as geoTransverseMercator,
};
