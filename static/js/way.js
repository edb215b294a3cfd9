/* The way through a list of comparisons: the arrow keys follow its links, unless something on the page has the focus
   or holds the key for itself. The title of the panel, which has the focus when it opens, holds none. */
document.addEventListener("keydown", (event) => {
  if ((event.target !== document.body && event.target.id !== "panel-title") || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const link = document.querySelector(`a[aria-keyshortcuts="${event.key}"]`);
  if (!link) return;
  event.preventDefault();
  link.click();
});
