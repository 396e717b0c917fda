"use strict";
// A step: its tensors, where each of them was when, and the bytes in each tier.

const NOWHERE = -1;

class Step {
  constructor(data) {
    Object.assign(this, data);
    this.lives = data.lives.map(([page, key, bytes, madeBy, born, dead, uses]) => ({
      page,
      key,
      bytes,
      madeBy: data.names[madeBy],
      born,
      dead,
      uses,
    }));
    this.ops = data.ops.map(([name, start, end]) => ({ lane: "compute", name: data.names[name], start, end, isOp: true, page: NOWHERE, bytes: 0 }));
    this.moves = data.moves.map(([lane, name, start, end, bytes, page]) => ({ lane, name, start, end, bytes, page }));
    this.byPage = new Map(this.lives.map((life) => [life.page, life]));
    this.byKey = new Map(this.lives.map((life) => [life.key, life]));
    this.largestFirst = [...this.lives].sort((one, other) => other.bytes - one.bytes);
    this.stalls = this.moves.filter((move) => move.name === "stall" && move.end - move.start > 1e-3 * this.end);
    this.stalls.sort((one, other) => one.start - other.start);
    this.usedAt = new Map();
    for (const life of this.lives) {
      for (const use of life.uses) {
        if (!this.usedAt.has(use)) this.usedAt.set(use, []);
        this.usedAt.get(use).push(life);
      }
    }
  }

  described(life) {
    const from = life.born === null ? "from before the step" : `by ${life.madeBy}`;
    return `${bytesText(life.bytes)} ${from} (#${life.key})`;
  }

  // What a person hears of a tensor.
  story(life) {
    const parts = [life.born === null ? "there from the start" : `born at ${secondsText(life.born)}`];
    for (const [name, past] of [["evict", "evicted"], ["fetch", "fetched"], ["recompute", "recomputed"]]) {
      const moves = this.movesOf(life).filter((move) => move.name === name);
      if (moves.length > 0) parts.push(`${past} at ${moves.slice(0, 3).map((move) => secondsText(move.start)).join(", ")}${moves.length > 3 ? ", …" : ""}`);
    }
    parts.push(`used ${life.uses.length} times`);
    parts.push(life.dead === null ? "lives on" : `dead at ${secondsText(life.dead)}`);
    return `${this.described(life)}: ${parts.join("; ")}.`;
  }

  movesOf(life) {
    return this.moves.filter((move) => move.page === life.page && move.lane !== "disk" && move.name !== "stall" && move.name !== "copying").sort((one, other) => one.start - other.start);
  }

  // From when to when a tensor was where: "device", "leaving", "away", "dropped" or "coming".
  whereabouts(life) {
    const moves = this.movesOf(life);
    const parts = [];
    const add = (kind, from, to) => {
      if (to > from) parts.push({ kind, from, to });
    };
    let since = life.born === null ? 0 : life.born;
    const last = life.dead === null ? this.end : life.dead;
    let isAway = life.born === null && moves.length > 0 && moves[0].name !== "evict";
    for (const move of moves) {
      if (move.name === "evict") {
        add("device", since, move.start);
        add("leaving", move.start, move.end);
        isAway = true;
      } else {
        const kind = move.name === "recompute" ? "dropped" : "away";
        const left = isAway ? since : this.lastUse(life, since, move.start);
        if (!isAway) add("device", since, left);
        add(kind, left, move.start);
        add("coming", move.start, move.end);
        isAway = false;
      }
      since = move.end;
    }
    add(isAway ? "away" : "device", since, last);
    return parts;
  }

  // It left without a copy, some time after it was used last.
  lastUse(life, from, until) {
    const before = life.uses.filter((use) => use >= from && use < until);
    return before.length > 0 ? before[before.length - 1] : from;
  }
}

// Values that hold until the next moment, at all moments of both.
function memoryData(step) {
  const moments = [...new Set([0, ...step.levels.at, ...step.demand.at, step.end])].sort((one, other) => one - other);
  const held = (at, values) => {
    let place = -1;
    return moments.map((moment) => {
      while (place + 1 < at.length && at[place + 1] <= moment) place += 1;
      return place < 0 ? null : values[place];
    });
  };
  const { levels, demand } = step;
  return [moments, held(levels.at, levels.device), held(levels.at, levels.host), held(levels.at, levels.disk), held(demand.at, demand.bytes)];
}

const TIERS = [
  { label: "on the device", color: "line-1", dash: [], width: 2 },
  { label: "in host memory", color: "line-3", dash: [10, 5], width: 2 },
  { label: "on disk", color: "line-4", dash: [2, 4], width: 2.5 },
  { label: "demand without LMS", color: "line-2", dash: [12, 4, 2, 4], width: 1.5 },
];

function memoryChart(element, step, view) {
  const whole = memoryData(step);
  const isTold = whole.slice(1).map((values) => values.some((value) => value !== null && value > 0));
  const told = TIERS.filter((tier, place) => isTold[place]);
  const data = whole.filter((values, place) => place === 0 || isTold[place - 1]);
  const options = {
    width: widthOf(element),
    height: 260,
    scales: { x: { time: false, min: view.shown[0], max: view.shown[1] }, y: { range: (chart, least, most) => [0, 1.08 * Math.max(most || 1, step.limit || 0)] } },
    cursor: { drag: { x: true, y: false, setScale: false }, sync: { key: "steps", setSeries: false } },
    legend: { markers: { dash: (chart, place) => (place === 0 || told[place - 1].dash.length === 0 ? "solid" : "dashed") } },
    axes: [
      { ...axisStyle(), values: (chart, splits) => splits.map(secondsText), space: 70 },
      { ...axisStyle(), size: 76, values: (chart, splits) => splits.map(bytesText) },
    ],
    series: [
      { label: "at", value: (chart, value) => (value === null ? "–" : secondsText(value)) },
      ...told.map((tier) => ({
        label: tier.label,
        stroke: () => cssColor(tier.color),
        width: tier.width,
        dash: tier.dash,
        paths: uPlot.paths.stepped({ align: 1 }),
        points: { show: false },
        value: (chart, value) => valueText(value, "bytes"),
      })),
    ],
    plugins: [zoomBySelection(view), { hooks: { draw: [(chart) => drawLimit(chart, step.limit)] } }],
  };
  const chart = new uPlot(options, data, element);
  view.add(chart);
  return chart;
}

function drawLimit(chart, limit) {
  if (limit === null) return;
  const { ctx, bbox } = chart;
  const ratio = devicePixelRatio;
  const top = chart.valToPos(limit, "y", true);
  ctx.save();
  ctx.fillStyle = cssColor("wait");
  ctx.strokeStyle = cssColor("wait");
  ctx.lineWidth = 1.5 * ratio;
  ctx.setLineDash([14 * ratio, 6 * ratio]);
  ctx.beginPath();
  ctx.moveTo(bbox.left, top);
  ctx.lineTo(bbox.left + bbox.width, top);
  ctx.stroke();
  ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  const text = `limit ${bytesText(limit)}`;
  ctx.textAlign = "left";
  ctx.setLineDash([]);
  ctx.lineWidth = 3 * ratio;
  ctx.strokeStyle = cssColor("paper");
  ctx.strokeText(text, bbox.left + 7 * ratio, top - 5 * ratio);
  ctx.fillText(text, bbox.left + 7 * ratio, top - 5 * ratio);
  ctx.restore();
}
