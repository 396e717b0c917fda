"use strict";
// Colours, dashes, marks and figures that all charts share. Lines differ by dash and mark as well as by colour.

const DASHES = [[], [10, 5], [2, 4], [12, 4, 2, 4], [6, 3], [16, 5, 4, 5, 4, 5]];
const MARKS = ["circle", "square", "triangle", "diamond", "cross", "star"];
const BYTE_UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

const cssColor = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const lineColor = (place) => cssColor(`line-${(place % 6) + 1}`);

function digits(value, count = 3) {
  return Number(value.toPrecision(count)).toString();
}

function bytesText(bytes) {
  let size = Math.abs(bytes);
  let unit = 0;
  while (size >= 999.5 && unit < BYTE_UNITS.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${bytes < 0 ? "-" : ""}${digits(size)} ${BYTE_UNITS[unit]}`;
}

function secondsText(seconds) {
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  if (size < 1e-3) return `${digits(seconds * 1e6)} µs`;
  if (size < 1) return `${digits(seconds * 1e3)} ms`;
  if (size < 120) return `${digits(seconds, 4)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

function valueText(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "bytes") return bytesText(value);
  if (unit === "seconds") return secondsText(value);
  if (unit === "share") return `${digits(value * 100)} %`;
  if (Math.abs(value) >= 1e5) {
    const thousands = Math.min(4, Math.floor(Math.log10(Math.abs(value)) / 3));
    return `${digits(value / 1000 ** thousands)}${["", "k", "M", "G", "T"][thousands]}`;
  }
  return digits(value, 4);
}

function drawMark(ctx, mark, x, y, size) {
  ctx.beginPath();
  if (mark === "circle") ctx.arc(x, y, size, 0, 2 * Math.PI);
  else if (mark === "square") ctx.rect(x - size, y - size, 2 * size, 2 * size);
  else if (mark === "triangle") polygon(ctx, x, y, 1.25 * size, 3);
  else if (mark === "diamond") polygon(ctx, x, y, 1.3 * size, 4);
  else if (mark === "star") polygon(ctx, x, y, 1.25 * size, 5);
  else {
    cross(ctx, x, y, size);
    return;
  }
  ctx.fill();
  ctx.stroke();
}

function polygon(ctx, x, y, size, corners) {
  for (let corner = 0; corner < corners; corner += 1) {
    const angle = (2 * Math.PI * corner) / corners - Math.PI / 2;
    ctx.lineTo(x + size * Math.cos(angle), y + size * Math.sin(angle));
  }
  ctx.closePath();
}

function cross(ctx, x, y, size) {
  ctx.beginPath();
  ctx.moveTo(x - size, y - size);
  ctx.lineTo(x + size, y + size);
  ctx.moveTo(x + size, y - size);
  ctx.lineTo(x - size, y + size);
  ctx.stroke();
}

// Lines at an angle over a rectangle: told from a plain one without colour.
function hatch(ctx, left, top, width, height, gap) {
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top, width, height);
  ctx.clip();
  ctx.beginPath();
  for (let at = left - height - ((left - height) % gap); at < left + width; at += gap) {
    ctx.moveTo(at, top + height);
    ctx.lineTo(at + height, top);
  }
  ctx.stroke();
  ctx.restore();
}

function axisStyle() {
  const rule = { stroke: () => cssColor("rule"), width: 1 };
  return { stroke: () => cssColor("ink"), grid: rule, ticks: rule };
}

function widthOf(element) {
  return Math.max(240, Math.floor(element.clientWidth));
}
