/* Labelling screen: what was changed in a text, word by word. A quick sketch of what the server stores
   (annotation/text/edits.py): the same words and signs, compared while one types. */

const TOKEN = /\n|[^\S\n]+|[\p{L}\p{N}\p{M}_]+|\p{RI}{2}|[^\s](?:[\p{M}\p{EMod}\uFE0E\uFE0F]|\u200D\S)*/gu;
const COMPARABLE = 4_000_000;

/** [kind, text] of both texts in one, in reading order; kind is same, deleted or inserted. */
export function difference(before, after) {
  const old = before.match(TOKEN) ?? [];
  const now = after.match(TOKEN) ?? [];
  let head = 0;
  while (head < Math.min(old.length, now.length) && old[head] === now[head]) head += 1;
  let tail = 0;
  while (tail < Math.min(old.length, now.length) - head && old.at(-1 - tail) === now.at(-1 - tail)) tail += 1;
  const middle = between(old.slice(head, old.length - tail), now.slice(head, now.length - tail));
  return joined([
    ["same", old.slice(0, head).join("")], ...middle, ["same", tail ? old.slice(-tail).join("") : ""],
  ]);
}

function between(old, now) {
  if (!old.length || !now.length || old.length * now.length > COMPARABLE) {
    return [["deleted", old.join("")], ["inserted", now.join("")]];
  }
  // Length of the longest common run of words from each pair of places on.
  const width = now.length + 1;
  const longest = new Uint16Array((old.length + 1) * width);
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = now.length - 1; j >= 0; j -= 1) {
      longest[i * width + j] = old[i] === now[j]
        ? longest[(i + 1) * width + j + 1] + 1
        : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
    }
  }
  const found = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < now.length) {
    if (i < old.length && j < now.length && old[i] === now[j]) found.push(["same", old[i++], j++]);
    else if (j >= now.length || (i < old.length && longest[(i + 1) * width + j] >= longest[i * width + j + 1])) found.push(["deleted", old[i++]]);
    else found.push(["inserted", now[j++]]);
  }
  return found;
}

/** Neighbours of one kind as one; what went stands before what came, also over a space between two changes. */
function joined(pieces) {
  const found = [];
  let [gone, come] = ["", ""];
  const flush = () => {
    if (gone) found.push(["deleted", gone]);
    if (come) found.push(["inserted", come]);
    [gone, come] = ["", ""];
  };
  const list = pieces.filter(([, text]) => text);
  list.forEach(([kind, text], index) => {
    if (kind === "deleted") gone += text;
    else if (kind === "inserted") come += text;
    else if ((gone || come) && /^[^\S\n]+$/.test(text) && index + 1 < list.length && list[index + 1][0] !== "same") {
      gone += text;
      come += text;
    } else {
      flush();
      if (found.at(-1)?.[0] === "same") found.at(-1)[1] += text;
      else found.push(["same", text]);
    }
  });
  flush();
  return found;
}
