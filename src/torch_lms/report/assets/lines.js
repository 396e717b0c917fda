"use strict";
// Charts of lines over numbers: sweeps, trainings.

function lineChart(element, spec) {
  const xs = spec.x.values;
  const margin = xs.length > 1 ? (xs[xs.length - 1] - xs[0]) * 0.04 : 1;
  const view = new View([xs[0] - margin, xs[xs.length - 1] + margin]);
  const data = [xs, ...spec.series.map((series) => series.values)];
  const options = {
    width: widthOf(element),
    height: 280,
    scales: { x: { time: false, min: view.shown[0], max: view.shown[1] }, y: { range: (chart, low, high) => yRange(low, most(spec, high)) } },
    cursor: { drag: { x: true, y: false, setScale: false } },
    legend: { markers: { dash: (chart, place) => (place === 0 || DASHES[(place - 1) % 6].length === 0 ? "solid" : "dashed") } },
    axes: [
      { ...axisStyle(), label: spec.x.name, labelSize: 22, size: 36 },
      { ...axisStyle(), size: 76, values: (chart, splits) => splits.map((value) => valueText(value, spec.unit)) },
    ],
    series: [
      { label: spec.x.name, value: (chart, value) => (value === null ? "–" : digits(value, 6)) },
      ...spec.series.map((series, place) => ({
        label: series.name,
        stroke: () => lineColor(place),
        width: 2,
        dash: DASHES[place % 6],
        spanGaps: true,
        points: { show: false },
        value: (chart, value) => valueText(value, spec.unit),
      })),
    ],
    plugins: [zoomBySelection(view), { hooks: { draw: [(chart) => drawPoints(chart, spec)] } }],
  };
  const chart = new uPlot(options, data, element);
  view.add(chart);
  listenToKeys(element, (action) => view.obey(action));
  return chart;
}

// The bands' ends count, too.
function most(spec, high) {
  const ends = spec.series.flatMap((series) => series.high).filter((value) => value !== null);
  return high === null || ends.length === 0 ? high : Math.max(high, ...ends);
}

// From zero, where that does not hide what differs.
function yRange(least, most) {
  if (least === null || most === null) return [0, 1];
  if (least >= 0 && least < 0.6 * most) return [0, most * 1.08 || 1];
  const margin = (most - least) * 0.1 || Math.abs(most) * 0.1 || 1;
  return [least - margin, most + margin];
}

function drawPoints(chart, spec) {
  const { ctx } = chart;
  const ratio = devicePixelRatio;
  const [least, most] = [chart.scales.x.min, chart.scales.x.max];
  ctx.save();
  ctx.setLineDash([]); // the last line's are still in force
  ctx.lineWidth = 1.5 * ratio;
  spec.series.forEach((series, place) => {
    if (!chart.series[place + 1].show) return;
    ctx.strokeStyle = ctx.fillStyle = lineColor(place);
    spec.x.values.forEach((x, at) => {
      const value = series.values[at];
      if (value === null || value === undefined || x < least || x > most) return;
      const left = chart.valToPos(x, "x", true);
      drawBand(chart, series, at, left, ratio);
      if (spec.points || isAlone(series.values, at)) drawMark(ctx, MARKS[place % 6], left, chart.valToPos(value, "y", true), 4 * ratio);
    });
  });
  drawFailures(chart, spec, ratio);
  ctx.restore();
}

const isAlone = (values, at) => (values[at - 1] ?? null) === null && (values[at + 1] ?? null) === null;

// The quartiles, as a line from one to the other.
function drawBand(chart, series, at, left, ratio) {
  const low = series.low[at] ?? null;
  const high = series.high[at] ?? null;
  if (low === null || high === null) return;
  const { ctx } = chart;
  ctx.beginPath();
  for (const end of [low, high]) {
    const top = chart.valToPos(end, "y", true);
    ctx.moveTo(left - 4 * ratio, top);
    ctx.lineTo(left + 4 * ratio, top);
  }
  ctx.moveTo(left, chart.valToPos(low, "y", true));
  ctx.lineTo(left, chart.valToPos(high, "y", true));
  ctx.stroke();
}

// At the foot of the chart, since they have no value.
function drawFailures(chart, spec, ratio) {
  const { ctx, bbox } = chart;
  ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  ctx.textAlign = "right";
  const rows = new Map();
  for (const [x, whose, why] of spec.failures) {
    const place = spec.series.findIndex((series) => series.name === whose);
    const isFirst = !rows.has(whose);
    if (isFirst) rows.set(whose, rows.size);
    if (x < chart.scales.x.min || x > chart.scales.x.max) continue;
    const top = bbox.top + bbox.height - (9 + 14 * rows.get(whose)) * ratio;
    const left = chart.valToPos(x, "x", true);
    ctx.strokeStyle = ctx.fillStyle = lineColor(place);
    cross(ctx, left, top, 4 * ratio);
    if (!isFirst) continue;
    const text = `${whose}: ${why}`;
    const isRoomy = ctx.measureText(text).width < left - bbox.left - 10 * ratio;
    ctx.textAlign = isRoomy ? "right" : "left";
    ctx.fillText(text, left + (isRoomy ? -8 : 8) * ratio, top + 4 * ratio);
  }
}
