"use strict";
// One image at a time: drawn or dropped, sent as it is, then moved by the sliders. No address but this server's.

const $ = (id) => document.getElementById(id);
const sliders = ["rotation", "scale", "x", "y"];
const units = { rotation: (v) => `${v}°`, scale: (v) => `${Math.round(100 * v)} %`, x: percent, y: percent };
let about = null, image = null, waiting = null, busy = false;

function percent(v) { return `${Math.round(100 * v)} %`; }

function paper() {
  const level = Math.round(255 * about.background);
  return { back: `rgb(${level},${level},${level})`, ink: about.background < 0.5 ? "white" : "black" };
}

function clear() {
  const pen = $("pad").getContext("2d");
  pen.fillStyle = paper().back;
  pen.fillRect(0, 0, $("pad").width, $("pad").height);
}

function complain(words) { $("error").textContent = words; }

// The newest question is the only one that matters: while one is being answered, later ones replace each other.
function ask() {
  if (!image) return;
  const move = Object.fromEntries(sliders.map((name) => [name, $(name).value]));
  waiting = { image, move };
  if (!busy) next();
}

async function next() {
  if (!waiting) return;
  const { image: sent, move } = waiting;
  waiting = null;
  busy = true;
  try {
    const reply = await fetch(`look?${new URLSearchParams(move)}`, { method: "POST", body: sent });
    const found = await reply.json();
    complain(reply.ok ? "" : found.error);
    if (reply.ok) await show(found);
    else forget();
  } catch (error) {
    complain("The server does not answer; is pstn serve still running?");
  }
  busy = false;
  next();
}

// What was refused has no prediction, and the one before is not its own.
function forget() {
  image = null;
  $("answer").textContent = "–";
  for (const id of ["bars", "doubts", "draws"]) $(id).replaceChildren();
  $("seen").getContext("2d").clearRect(0, 0, $("seen").width, $("seen").height);
}

function load(address) {
  return new Promise((done, failed) => {
    const made = new Image();
    made.onload = () => done(made);
    made.onerror = failed;
    made.src = address;
  });
}

function bar(name, share, words, best) {
  const row = document.createElement("div"), label = document.createElement("span");
  const track = document.createElement("span"), fill = document.createElement("i"), number = document.createElement("output");
  row.className = best ? "bar best" : "bar";
  label.textContent = label.title = name;
  fill.style.width = `${Math.max(0, Math.min(100, 100 * share))}%`;
  number.textContent = words;
  track.append(fill);
  row.append(label, track, number);
  return row;
}

async function show(found) {
  const best = Math.max(...found.probs);
  $("answer").textContent = `${found.class}, with probability ${best.toFixed(3)}`;
  const order = about.classes.map((name, i) => [name, found.probs[i]]);
  if (order.length > 12) order.sort((a, b) => b[1] - a[1]);
  $("bars").replaceChildren(...order.slice(0, 12).map(([name, p]) => bar(name, p, p.toFixed(3), p === best)));
  const most = found.largest_entropy;
  $("doubts").replaceChildren(
    bar("entropy", found.entropy / most, found.entropy.toFixed(3)),
    bar("mutual information", found.mutual_information / most, found.mutual_information.toFixed(3)),
  );
  const seen = $("seen"), pen = seen.getContext("2d"), picture = await load(found.moved);
  const left = seen.width / 6, top = seen.height / 6, width = seen.width - 2 * left, height = seen.height - 2 * top;
  pen.clearRect(0, 0, seen.width, seen.height);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(picture, left, top, width, height);
  pen.strokeStyle = "rgba(213, 94, 0, .8)";
  pen.lineWidth = 1.5;
  for (const frame of found.frames) {
    pen.beginPath();
    for (const [x, y] of frame) pen.lineTo(left + width * x, top + height * y);
    pen.closePath();
    pen.stroke();
  }
  $("draws").replaceChildren(...await Promise.all(found.draws.map(load)));
  document.body.dataset.shown = String(Number(document.body.dataset.shown || 0) + 1);
}

function reset() {
  for (const name of sliders) $(name).value = name === "scale" ? 1 : 0;
  label();
}

function label() {
  for (const name of sliders) $(name).nextElementSibling.textContent = units[name]($(name).value);
}

async function take(file) {
  if (!file) return;
  reset();
  image = file;
  const address = URL.createObjectURL(file);
  try {
    const picture = await load(address), pad = $("pad");
    clear();
    pad.getContext("2d").drawImage(picture, 0, 0, pad.width, pad.height);
  } catch (error) {
    clear(); // the server says what is wrong with it
  }
  URL.revokeObjectURL(address);
  ask();
}

function drawing() {
  const pad = $("pad"), pen = pad.getContext("2d");
  let last = null;
  const where = (event) => {
    const box = pad.getBoundingClientRect();
    return [(event.clientX - box.left) * pad.width / box.width, (event.clientY - box.top) * pad.height / box.height];
  };
  const stroke = (here) => {
    pen.strokeStyle = paper().ink;
    pen.lineWidth = Math.max(pad.width, pad.height) / 12;
    pen.lineCap = pen.lineJoin = "round";
    pen.beginPath();
    pen.moveTo(...last);
    pen.lineTo(...here);
    pen.stroke();
    last = here;
  };
  pad.addEventListener("pointerdown", (event) => {
    pad.setPointerCapture(event.pointerId);
    last = where(event);
    stroke(last); // a click is a dot
  });
  pad.addEventListener("pointermove", (event) => { if (last) stroke(where(event)); });
  const lift = () => {
    if (!last) return;
    last = null;
    pad.toBlob((drawn) => { image = drawn; ask(); }, "image/png");
  };
  pad.addEventListener("pointerup", lift);
  pad.addEventListener("pointercancel", lift);
}

// The canvases have the shape of the model's input: what is drawn on one is not squeezed into it.
function shape() {
  const [, height, width] = about.shape;
  for (const id of ["pad", "seen"]) {
    const canvas = $(id), side = canvas.width / Math.max(height, width);
    [canvas.width, canvas.height] = [Math.round(side * width), Math.round(side * height)];
    canvas.parentElement.style.aspectRatio = `${width} / ${height}`;
  }
}

async function start() {
  about = await (await fetch("about")).json();
  $("name").textContent = `${about.name}: ${about.classes.length} classes`;
  shape();
  clear();
  label();
  drawing();
  for (const name of sliders) $(name).addEventListener("input", () => { label(); ask(); });
  $("back").addEventListener("click", () => { reset(); ask(); });
  $("clear").addEventListener("click", () => { clear(); reset(); forget(); complain(""); });
  $("file").addEventListener("change", (event) => take(event.target.files[0]));
  addEventListener("dragover", (event) => { event.preventDefault(); $("pad").classList.add("over"); });
  addEventListener("dragleave", () => $("pad").classList.remove("over"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    $("pad").classList.remove("over");
    take(event.dataTransfer.files[0]);
  });
  document.body.dataset.ready = "yes";
}

start().catch(() => complain("The server does not answer; is pstn serve still running?"));
