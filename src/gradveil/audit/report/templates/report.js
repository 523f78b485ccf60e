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
  const hidden = new Set();
  const chart = document.getElementById("chart-frontier");
  const choice = document.getElementById("choose-leak");

  const scalable = () => {
    for (const svg of all("svg.main-svg", chart)) {
      const [width, height] = ["width", "height"].map((side) => svg.getAttribute(side));
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      chart.style.setProperty("--ratio", `${width} / ${height}`);
    }
  };
  const draw = () => {
    const { data: traces, layout } = data[choice.value];
    const shown = traces.map((trace) => ({ ...trace, visible: !hidden.has(trace.meta.defense) }));
    return Plotly.react(chart, shown, whole(layout), config);
  };
  draw().then(() => {
    scalable();
    chart.on("plotly_afterplot", scalable);
  });
  addEventListener("beforeprint", () => Plotly.relayout(chart, { width: 680, height: 320 }));
  addEventListener("afterprint", () => Plotly.relayout(chart, { width: null, height: null }));
  choice.addEventListener("change", draw);
  document.querySelector(".legend").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const { defense } = button.dataset;
    const shown = hidden.delete(defense) || !hidden.add(defense);
    button.setAttribute("aria-pressed", String(shown));
    draw();
  });
})();
