// A printed page shows everything.
addEventListener("beforeprint", () =>
  document.querySelectorAll("details").forEach(fold => { fold.open = true; }));
