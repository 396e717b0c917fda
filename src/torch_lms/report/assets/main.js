"use strict";
// Puts the charts on the page, and lets one choice and one view hold for all timelines.

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const charts = [];
  const said = document.getElementById("said");
  const timelines = [];
  let current = 0;
  let view = null;

  function say(text) {
    if (said !== null) said.textContent = text;
  }

  function choose(life) {
    for (const { step, lanes } of timelines) {
      const same = life === null ? null : step.byKey.get(life.key);
      lanes.chosen = same === undefined ? null : same;
      lanes.chart.redraw(false);
    }
    for (const button of document.querySelectorAll("button.tensor")) {
      const timeline = timelines.find(({ step }) => step.id === button.dataset.step);
      const page = timeline && timeline.lanes.chosen ? String(timeline.lanes.chosen.page) : "";
      button.setAttribute("aria-pressed", String(button.dataset.page === page && life !== null));
    }
    const { step } = timelines[current];
    say(life === null ? "No tensor is chosen." : step.story(step.byKey.get(life.key) || life));
  }

  function chooseBeside(places) {
    const { step, lanes } = timelines[current];
    if (step.largestFirst.length === 0) return;
    const at = lanes.chosen === null ? -1 : step.largestFirst.indexOf(lanes.chosen);
    const count = step.largestFirst.length;
    const next = at < 0 ? (places > 0 ? 0 : count - 1) : (at + places + count) % count;
    choose(step.largestFirst[next]);
  }

  function showNextStall() {
    const { step } = timelines[current];
    if (step.stalls.length === 0) {
      say("The program waits for nothing that can be seen here.");
      return;
    }
    const [least, most] = view.shown;
    const isWhole = most - least >= 0.999 * (view.whole[1] - view.whole[0]);
    const middle = isWhole ? -1 : (least + most) / 2;
    const stall = step.stalls.find((each) => (each.start + each.end) / 2 > middle * (1 + 1e-6) + 1e-9) || step.stalls[0];
    const length = Math.max(4 * (stall.end - stall.start), step.end / 50);
    const center = (stall.start + stall.end) / 2;
    view.show(center - length / 2, center + length / 2);
    const life = step.byPage.get(stall.page);
    choose(life || null);
    const what = life ? `for ${step.described(life)}` : "and no copy ended it";
    say(`At ${secondsText(stall.start)} the program waits ${secondsText(stall.end - stall.start)} ${what}.`);
  }

  function obey(action) {
    const actions = {
      next: () => chooseBeside(1),
      n: () => chooseBeside(1),
      previous: () => chooseBeside(-1),
      p: () => chooseBeside(-1),
      stall: showNextStall,
      s: showNextStall,
      Escape: () => choose(null),
    };
    if (action in actions) {
      actions[action]();
      return true;
    }
    return view.obey(action);
  }

  function addStep(stepData, place) {
    const step = new Step(stepData);
    const memory = document.getElementById(`${step.id}-memory`);
    const lanes = document.getElementById(`${step.id}-lanes`);
    if (step.levels.at.length > 0 || step.demand.at.length > 0) charts.push([memory, memoryChart(memory, step, view)]);
    else memory.textContent = "Nothing is known of memory.";
    const drawn = new LanesChart(lanes, step, view, (life) => {
      current = place;
      choose(life);
    });
    charts.push([lanes, drawn.chart]);
    timelines.push({ step, lanes: drawn });
    for (const element of [memory, lanes]) {
      element.addEventListener("focusin", () => (current = place));
      element.addEventListener("pointerenter", () => (current = place));
      listenToKeys(element, obey);
    }
  }

  if (data.steps.length > 0) {
    view = new View([0, Math.max(...data.steps.map((step) => step.end)) || 1]);
    data.steps.forEach(addStep);
    document.getElementById("controls").addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button !== null) obey(button.dataset.do);
    });
    for (const button of document.querySelectorAll("button.tensor")) {
      button.setAttribute("aria-pressed", "false");
      button.addEventListener("click", () => {
        current = timelines.findIndex(({ step }) => step.id === button.dataset.step);
        const { step, lanes } = timelines[current];
        const life = step.byPage.get(Number(button.dataset.page)) || null;
        choose(lanes.chosen === life ? null : life);
      });
    }
  }
  for (const spec of data.charts) {
    const element = document.getElementById(spec.id);
    charts.push([element, lineChart(element, spec)]);
  }

  new ResizeObserver(() => {
    for (const [element, chart] of charts) {
      if (chart.width !== widthOf(element)) chart.setSize({ width: widthOf(element), height: chart.height });
    }
  }).observe(document.body);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const [, chart] of charts) chart.redraw(false);
  });
  window.torchLmsReport = { charts: charts.map(([, chart]) => chart), timelines, view, choose };
})();
