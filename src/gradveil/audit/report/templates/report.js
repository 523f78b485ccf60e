"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  const key = (row, column) => {
    const text = row.cells[column].dataset.value;
    if (text === undefined) return null;
    return Number.isNaN(Number(text)) ? text : Number(text);
  };
  const compare = (a, b, sign) => {
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    return sign * String(a).localeCompare(String(b), "en", { numeric: true });
  };
  const sort = (table, column) => {
    const heads = all("thead th", table);
    const up = heads[column].getAttribute("aria-sort") !== "ascending";
    heads.forEach((th, i) => {
      th.setAttribute("aria-sort", i !== column ? "none" : up ? "ascending" : "descending");
    });
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => compare(key(a, column), key(b, column), up ? 1 : -1));
    table.tBodies[0].append(...rows);
  };
  for (const table of all("table.sortable")) {
    all("thead button", table).forEach((button, column) => {
      button.addEventListener("click", () => sort(table, column));
    });
  }

  for (const button of all("[data-copy]")) {
    button.addEventListener("click", async () => {
      const code = button.closest(".paste").querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch {
        getSelection().selectAllChildren(code);
        document.execCommand("copy");
      }
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }

  if (typeof Plotly === "undefined") return;
  const data = JSON.parse(document.getElementById("chart-data").textContent);
  const config = { displayModeBar: false, displaylogo: false, responsive: true };
  const axis = {
    automargin: true, zeroline: false, fixedrange: true, gridcolor: "rgba(128,128,128,0.25)",
    tickfont: { size: 12 },
  };
  const frame = {
    showlegend: false, hovermode: "closest", paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 56, r: 12, t: 12, b: 52 },
    hoverlabel: {
      bgcolor: "#22272e", bordercolor: "#22272e", align: "left",
      font: { color: "#ffffff", size: 13 },
    },
  };
  const titled = (own) => ({
    ...axis, ...own, title: { ...own.title, standoff: 12, font: { size: 13 } },
  });
  const whole = (own) => structuredClone({
    ...frame, ...own, xaxis: titled(own.xaxis), yaxis: titled(own.yaxis),
  });
  const hidden = Object.fromEntries(Object.keys(data).map((group) => [group, new Set()]));

  const figure = (chart) => {
    const { chart: group, choices, name } = chart.dataset;
    if (!choices) return data[group][name];
    const chosen = choices.split(" ").map((id) => document.getElementById(id).value);
    return data[group][chosen.join("/")];
  };
  const scalable = (chart) => {
    for (const svg of all("svg.main-svg", chart)) {
      const [width, height] = ["width", "height"].map((side) => svg.getAttribute(side));
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      chart.style.setProperty("--ratio", `${width} / ${height}`);
    }
  };
  const draw = (chart) => {
    const { data: traces, layout } = figure(chart);
    const off = hidden[chart.dataset.chart];
    const shown = traces.map((trace) => ({
      ...trace,
      visible: !off.has(`defense ${trace.meta.defense}`) && !off.has(`mark ${trace.meta.mark}`),
    }));
    return Plotly.react(chart, shown, whole(layout), config);
  };
  const charts = all("[data-chart]");
  for (const chart of charts) {
    draw(chart).then(() => {
      scalable(chart);
      chart.on("plotly_afterplot", () => scalable(chart));
    });
  }
  addEventListener("beforeprint", () => {
    for (const chart of charts) {
      const wide = chart.matches(".tall, .frontier .chart");
      const height = chart.matches(".tall") ? 400 : wide ? 320 : 260;
      Plotly.relayout(chart, { width: wide ? 680 : 330, height });
    }
  });
  addEventListener("afterprint", () => {
    for (const chart of charts) Plotly.relayout(chart, { width: null, height: null });
  });
  for (const select of all("[data-choice]")) {
    select.addEventListener("change", () => {
      draw(document.getElementById(`chart-${select.dataset.choice}`));
    });
  }
  for (const legend of all("[data-legend]")) {
    const group = legend.dataset.legend;
    legend.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      const { mark, defense } = button.dataset;
      const name = mark === undefined ? `defense ${defense}` : `mark ${mark}`;
      const shown = hidden[group].delete(name) || !hidden[group].add(name);
      button.setAttribute("aria-pressed", String(shown));
      charts.filter((chart) => chart.dataset.chart === group).forEach(draw);
    });
  }
})();
