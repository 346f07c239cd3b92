// The first page's live frame is there from the first click on a head: until then nothing is loaded for it.
document.addEventListener("click", (event) => {
  const frame = document.querySelector("iframe.live");
  if (frame && event.target.closest("a[target=live]")) {
    frame.hidden = false;
    frame.scrollIntoView({ behavior: "smooth", block: "nearest" });
  }
});
