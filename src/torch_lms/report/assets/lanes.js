"use strict";
// The timeline of a step: a row for whoever can be busy, and one for the tensor that is chosen.

const LANES = [
  ["compute", "program"],
  ["out", "out"],
  ["in", "in"],
  ["disk", "disk"],
  ["planning", "planning"],
  ["collective", "exchange"],
];
const ROW = 40;
const MOVE_COLORS = { evict: "out", fetch: "in", stall: "wait", recompute: "again", copying: "out", plan: "disk", "all-reduce": "disk" };
const HATCHED = { stall: 6, copying: 9, recompute: 4 };
const PARTS = { device: "in memory", leaving: "leaves", away: "away", dropped: "dropped", coming: "comes" };

class LanesChart {
  constructor(element, step, view, choose) {
    this.step = step;
    this.element = element;
    this.chosen = null;
    const items = [...step.ops, ...step.moves];
    this.rows = LANES.map(([lane, label]) => ({ label, items: items.filter((item) => item.lane === lane).sort((one, other) => one.start - other.start) }));
    this.rows = this.rows.filter((row, place) => place === 0 || row.items.length > 0);
    this.hint = document.createElement("div");
    this.hint.className = "hint";
    this.hint.hidden = true;
    const count = this.rows.length + 1;
    const names = [...this.rows.map((row) => row.label), "tensor"];
    const options = {
      width: widthOf(element),
      height: count * ROW + 40,
      scales: { x: { time: false, min: view.shown[0], max: view.shown[1] }, y: { range: () => [0, count] } },
      cursor: { drag: { x: true, y: false, setScale: false }, y: false, points: { show: false }, sync: { key: "steps", setSeries: false } },
      legend: { show: false },
      axes: [
        { ...axisStyle(), values: (chart, splits) => splits.map(secondsText), space: 70 },
        { ...axisStyle(), size: 76, grid: { show: false }, splits: () => names.map((name, place) => count - place - 0.5), values: () => names },
      ],
      series: [{}, { show: true, stroke: "transparent", points: { show: false } }],
      plugins: [
        zoomBySelection(view),
        { hooks: { draw: [() => this.draw()], setCursor: [(chart) => this.tell(chart.cursor.left, chart.cursor.top)] } },
      ],
    };
    this.chart = new uPlot(options, [[0, step.end], [null, null]], element);
    this.chart.over.append(this.hint);
    this.chart.over.addEventListener("mouseleave", () => (this.hint.hidden = true));
    this.chart.over.addEventListener("click", (event) => {
      const item = this.at(event.offsetX, event.offsetY);
      const life = item === null ? null : this.lifeOf(item);
      if (life !== null) choose(life);
    });
    view.add(this.chart);
  }

  lifeOf(item) {
    if (item.page !== NOWHERE) return this.step.byPage.get(item.page) || null;
    const used = this.step.usedAt.get(item.start) || [];
    return used.reduce((most, life) => (most === null || life.bytes > most.bytes ? life : most), null);
  }

  // -- what is where --------------------------------------------------------------------------------------------------

  at(left, top) {
    const place = Math.floor(top / (this.chart.over.clientHeight / (this.rows.length + 1)));
    const row = this.rows[place];
    if (row === undefined) return null;
    const moment = this.chart.posToVal(left, "x");
    const near = Math.abs(this.chart.posToVal(left + 3, "x") - moment);
    let best = null;
    for (const item of row.items) {
      if (item.start > moment + near) break;
      if (item.end >= moment - near && (best === null || !item.isOp || item.start > best.start)) best = item;
    }
    return best;
  }

  tell(left, top) {
    const item = left < 0 || !this.chart.over.matches(":hover") ? null : this.at(left, top);
    this.hint.hidden = item === null;
    if (item === null) return;
    this.hint.textContent = this.text(item);
    const isRight = left > this.chart.over.clientWidth / 2;
    this.hint.style.left = isRight ? "" : `${left + 12}px`;
    this.hint.style.right = isRight ? `${this.chart.over.clientWidth - left + 12}px` : "";
    this.hint.style.top = `${top + 14}px`;
  }

  text(item) {
    const life = item.page === NOWHERE ? null : this.step.byPage.get(item.page);
    const lines = [`${item.name}, ${secondsText(item.end - item.start)}, at ${secondsText(item.start)}`];
    if (item.name === "stall") lines[0] = `waits ${secondsText(item.end - item.start)}, at ${secondsText(item.start)}`;
    if (item.name === "stall") lines.push(life ? `for ${this.step.described(life)}` : "no copy ended it: bookkeeping, or memory being freed");
    else if (life) lines.push(this.step.described(life));
    if (item.bytes && item.end > item.start) lines.push(`${bytesText(item.bytes)} at ${bytesText(item.bytes / (item.end - item.start))}/s`);
    if (item.isOp) {
      const used = this.step.usedAt.get(item.start) || [];
      lines.push(...used.slice(0, 4).map((each) => `• ${this.step.described(each)}`));
      if (used.length > 4) lines.push(`• and ${used.length - 4} tensors more`);
    }
    return lines.join("\n");
  }

  // -- drawing --------------------------------------------------------------------------------------------------------

  draw() {
    const { ctx, bbox } = this.chart;
    this.ratio = devicePixelRatio;
    this.rowHeight = bbox.height / (this.rows.length + 1);
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.font = `${11 * this.ratio}px system-ui, sans-serif`;
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    this.rows.forEach((row, place) => this.drawRow(row, bbox.top + place * this.rowHeight));
    this.drawLife(bbox.top + this.rows.length * this.rowHeight);
    ctx.restore();
  }

  drawRow(row, top) {
    const { ctx, bbox } = this.chart;
    const [least, most] = [this.chart.scales.x.min, this.chart.scales.x.max];
    const inset = 4 * this.ratio;
    const height = this.rowHeight - 2 * inset;
    const colors = new Map();
    const color = (name) => colors.get(name) || colors.set(name, cssColor(name)).get(name);
    ctx.strokeStyle = color("rule");
    ctx.lineWidth = this.ratio;
    ctx.strokeRect(bbox.left, top, bbox.width, this.rowHeight);
    let drawnTo = -Infinity;
    for (const item of row.items) {
      if (item.start > most) break;
      if (item.end < least) continue;
      const left = this.chart.valToPos(Math.max(item.start, least), "x", true);
      const right = this.chart.valToPos(Math.min(item.end, most), "x", true);
      const isChosen = this.chosen !== null && item.page === this.chosen.page;
      if (right - drawnTo < 0.5 && !isChosen) continue; // narrower than can be seen
      const width = Math.max(right - left, this.ratio);
      drawnTo = Math.max(drawnTo, left + width);
      ctx.globalAlpha = this.chosen !== null && !isChosen ? 0.35 : 1;
      this.drawItem(item, left, top + inset, width, height, color);
      if (isChosen) this.outline(left, top + inset, width, height, color("chosen"));
    }
    ctx.globalAlpha = 1;
  }

  drawItem(item, left, top, width, height, color) {
    const { ctx } = this.chart;
    const hue = item.isOp ? "op" : MOVE_COLORS[item.name] || "op";
    ctx.fillStyle = color(hue);
    ctx.strokeStyle = color(item.isOp ? "op-edge" : hue);
    ctx.lineWidth = this.ratio;
    if (item.name in HATCHED) {
      hatch(ctx, left, top, width, height, HATCHED[item.name] * this.ratio);
      ctx.strokeRect(left, top, width, height);
    } else {
      ctx.fillRect(left, top, width, height);
      if (width > 3 * this.ratio) ctx.strokeRect(left, top, width, height);
    }
    const label = item.isOp ? item.name.replace("aten::", "") : item.name === "stall" ? "wait" : item.name;
    const life = item.page === NOWHERE ? undefined : this.step.byPage.get(item.page);
    this.write(life && item.name !== "copying" ? `${label} ${bytesText(life.bytes)}` : label, left, top, width, height, item.isOp ? "ink" : item.name in HATCHED ? "ink" : "paper", item.name in HATCHED);
  }

  write(text, left, top, width, height, hue, isOnPaper) {
    const { ctx } = this.chart;
    if (width < 36 * this.ratio) return;
    const room = width - 8 * this.ratio;
    const length = ctx.measureText(text).width;
    const shown = length <= room ? text : `${text.slice(0, Math.max(1, Math.floor((text.length * room) / length) - 1))}…`;
    if (isOnPaper) {
      ctx.fillStyle = cssColor("paper");
      ctx.fillRect(left + 2 * this.ratio, top + height / 2 - 7 * this.ratio, Math.min(length, room) + 4 * this.ratio, 14 * this.ratio);
    }
    ctx.fillStyle = cssColor(hue);
    ctx.fillText(shown, left + 4 * this.ratio, top + height / 2);
  }

  outline(left, top, width, height, color) {
    const { ctx } = this.chart;
    ctx.strokeStyle = color;
    ctx.lineWidth = 2.5 * this.ratio;
    ctx.strokeRect(left - this.ratio, top - this.ratio, width + 2 * this.ratio, height + 2 * this.ratio);
  }

  // The life of the chosen tensor: a bar where it is in memory, a thin line where it is away, a mark for each event.
  drawLife(top) {
    const { ctx, bbox } = this.chart;
    const middle = top + this.rowHeight / 2;
    if (this.chosen === null) {
      ctx.fillStyle = cssColor("faint");
      ctx.fillText("choose a tensor", bbox.left + 6 * this.ratio, middle);
      return;
    }
    ctx.strokeStyle = ctx.fillStyle = cssColor("chosen");
    for (const part of this.step.whereabouts(this.chosen)) this.drawPart(part, middle);
    ctx.lineWidth = 1.5 * this.ratio;
    for (const use of this.chosen.uses) {
      const left = this.chart.valToPos(use, "x", true);
      ctx.beginPath();
      ctx.moveTo(left, top + 3 * this.ratio);
      ctx.lineTo(left, top + 9 * this.ratio);
      ctx.stroke();
    }
    const size = 5 * this.ratio;
    ctx.fillStyle = cssColor("chosen");
    if (this.chosen.born !== null) drawMark(ctx, "triangle", this.chart.valToPos(this.chosen.born, "x", true), middle, size);
    if (this.chosen.dead !== null) drawMark(ctx, "cross", this.chart.valToPos(this.chosen.dead, "x", true), middle, size);
  }

  drawPart(part, middle) {
    const { ctx } = this.chart;
    const half = this.rowHeight / 2 - 10 * this.ratio;
    const left = this.chart.valToPos(part.from, "x", true);
    const width = Math.max(this.chart.valToPos(part.to, "x", true) - left, this.ratio);
    ctx.lineWidth = 1.5 * this.ratio;
    if (part.kind === "away" || part.kind === "dropped") {
      ctx.save();
      ctx.setLineDash(part.kind === "away" ? [6 * this.ratio, 4 * this.ratio] : [2 * this.ratio, 4 * this.ratio]);
      ctx.beginPath();
      ctx.moveTo(left, middle);
      ctx.lineTo(left + width, middle);
      ctx.stroke();
      ctx.restore();
    } else if (part.kind === "device") {
      ctx.globalAlpha = 0.3;
      ctx.fillRect(left, middle - half, width, 2 * half);
      ctx.globalAlpha = 1;
      ctx.strokeRect(left, middle - half, width, 2 * half);
    } else {
      hatch(ctx, left, middle - half, width, 2 * half, 4 * this.ratio);
      ctx.strokeRect(left, middle - half, width, 2 * half);
    }
    this.write(PARTS[part.kind], left, middle - half, width, 2 * half, "ink", part.kind !== "device");
    ctx.strokeStyle = ctx.fillStyle = cssColor("chosen");
  }
}
