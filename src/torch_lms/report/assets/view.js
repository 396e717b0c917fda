"use strict";
// Which part of its x axis a chart shows: by mouse, by fingers, by keys. Charts of a group show the same part.

class View {
  constructor(whole) {
    this.whole = whole; // [least, most]
    this.shown = [...whole];
    this.charts = [];
  }

  add(chart) {
    this.charts.push(chart);
  }

  show(least, most) {
    const [first, last] = this.whole;
    const length = Math.min(last - first, Math.max(most - least, (last - first) / 1e6));
    const start = Math.min(Math.max(least, first), last - length);
    this.shown = [start, start + length];
    for (const chart of this.charts) chart.setScale("x", { min: this.shown[0], max: this.shown[1] });
  }

  zoom(factor, about) {
    const [least, most] = this.shown;
    const center = about === undefined ? (least + most) / 2 : about;
    this.show(center - (center - least) * factor, center + (most - center) * factor);
  }

  move(share) {
    const length = this.shown[1] - this.shown[0];
    this.show(this.shown[0] + share * length, this.shown[1] + share * length);
  }

  reset() {
    this.show(...this.whole);
  }

  obey(action) {
    const actions = {
      in: () => this.zoom(0.5),
      out: () => this.zoom(2),
      left: () => this.move(-0.25),
      right: () => this.move(0.25),
      whole: () => this.reset(),
    };
    if (!(action in actions)) return false;
    actions[action]();
    return true;
  }
}

const KEYS = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "whole", Home: "whole" };

function listenToKeys(element, obey) {
  element.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (obey(KEYS[event.key] || event.key)) event.preventDefault();
  });
}

// A drag with the mouse selects what is shown next; uPlot draws it.
function zoomBySelection(view) {
  return {
    hooks: {
      setSelect: [
        (chart) => {
          const { left, width } = chart.select;
          if (width > 3) view.show(chart.posToVal(left, "x"), chart.posToVal(left + width, "x"));
          chart.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        },
      ],
      ready: [
        (chart) => {
          chart.over.addEventListener("dblclick", () => view.reset());
          listenToFingers(chart, view);
          listenToWheel(chart, view);
        },
      ],
    },
  };
}

function listenToWheel(chart, view) {
  chart.over.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // else the page could not be scrolled
      event.preventDefault();
      view.zoom(event.deltaY > 0 ? 1.25 : 0.8, chart.posToVal(event.offsetX, "x"));
    },
    { passive: false },
  );
}

// One finger moves, two zoom; up and down scrolls the page (touch-action: pan-y).
function listenToFingers(chart, view) {
  const fingers = new Map();
  const spread = () => {
    const [first, second] = [...fingers.values()];
    return [(first + second) / 2, Math.max(10, Math.abs(first - second))];
  };
  const at = (event) => event.clientX - chart.over.getBoundingClientRect().left;
  chart.over.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch") fingers.set(event.pointerId, at(event));
  });
  chart.over.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) return;
    const before = fingers.get(event.pointerId);
    if (fingers.size === 1) {
      fingers.set(event.pointerId, at(event));
      view.move((before - at(event)) / chart.over.clientWidth);
      return;
    }
    const [, apart] = spread();
    fingers.set(event.pointerId, at(event));
    const [center, apartNow] = spread();
    view.zoom(apart / apartNow, chart.posToVal(center, "x"));
  });
  for (const end of ["pointerup", "pointercancel", "pointerleave"]) {
    chart.over.addEventListener(end, (event) => fingers.delete(event.pointerId));
  }
}
