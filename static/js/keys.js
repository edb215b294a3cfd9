/* One's own keys: a field takes the key that is pressed in it. Without JavaScript one writes its name. */

const LEFT_ALONE = new Set(["Tab", "Escape", "Shift", "Control", "Alt", "AltGraph", "Meta", "CapsLock", "Dead", "Unidentified", "Process"]);

document.addEventListener("keydown", (event) => {
  if (!event.target.matches?.("[data-takes-key]") || event.isComposing) return;
  // A key with Ctrl, Alt or Meta is the browser's or the reader's; Ctrl and Alt together write a sign (AltGr).
  const writes = event.key.length === 1 && (event.ctrlKey === event.altKey);
  if (LEFT_ALONE.has(event.key) || event.metaKey || ((event.ctrlKey || event.altKey) && !writes)) return;
  event.preventDefault();
  event.target.value = event.key.length === 1 ? event.key.toLowerCase() : `${event.shiftKey ? "Shift+" : ""}${event.key}`;
  event.target.select();
});
