"use strict";
// Figures are drawn shortly before they scroll into view; plotly.js is parsed with the first.
{
  const CONFIG = { responsive: true, displayModeBar: false, displaylogo: false, showTips: false };
  const drawn = new Map();  // figure → its data, and the text that it was parsed from

  function plotly() {
    if (!window.Plotly) {
      document.head.append(make("script", {}, $("#plotly").textContent));
    }
    return window.Plotly;
  }

  /** Return a color of the style sheet in the current theme. */
  function color(name) {
    const probe = make("span", { style: `color: var(--${name})` });
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }

  function template() {
    const ink = color("ink"), quiet = color("quiet"), rule = color("rule");
    const axis = {
      gridcolor: rule, linecolor: rule, zerolinecolor: rule, tickcolor: rule, automargin: true,
      tickfont: { color: quiet }, title: { font: { color: quiet, size: 12 }, standoff: 8 },
    };
    return {
      layout: {
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink },
        colorway: [1, 2, 3, 4, 5, 6, 7, 8].map((n) => color(`series-${n}`)),
        margin: { l: 56, r: 16, t: 28, b: 48 },
        hoverlabel: { bgcolor: color("raised"), bordercolor: rule, font: { color: ink } },
        legend: { bgcolor: "rgba(0,0,0,0)" },
        xaxis: axis,
        yaxis: axis,
        annotationdefaults: { font: { color: quiet } },
      },
    };
  }

  function layout(spec) {
    // On touch screens, dragging over a figure scrolls the page.
    const dragmode = matchMedia("(pointer: coarse)").matches ? false : "zoom";
    return { dragmode, ...spec.layout, template: template(), autosize: true };
  }

  function parse(figure) {
    const text = $("script", figure).textContent;
    if (drawn.get(figure)?.text !== text) drawn.set(figure, { text, spec: JSON.parse(text) });
    return drawn.get(figure).spec;
  }

  async function draw(figure) {
    const spec = parse(figure);
    await plotly().newPlot($(".plot", figure), spec.data, layout(structuredClone(spec)), CONFIG);
    figure.classList.add("drawn");
  }

  /** Draw a figure with new data; keep what the reader zoomed to and which series are hidden. */
  function redraw(figure) {
    const box = $(".plot", figure);
    const spec = parse(figure);
    const next = layout(structuredClone(spec));
    for (const [name, axis] of Object.entries(next)) {
      const { range, autorange } = box.layout[name] ?? {};
      if (/^[xy]axis/.test(name) && autorange === false && !axis.range) Object.assign(axis, { range, autorange });
    }
    const group = (series) => series.legendgroup ?? series.name;  // a line and its band
    const hidden = box.data.filter((series) => series.visible === "legendonly").map(group);
    const data = structuredClone(spec.data);
    for (const series of data) if (hidden.includes(group(series))) series.visible = "legendonly";
    plotly().react(box, data, next, CONFIG);
  }

  /** Draw figures again whose data changed, and observe new ones. */
  function update() {
    for (const figure of drawn.keys()) {
      if (!figure.isConnected) drawn.delete(figure);
    }
    for (const figure of $$("figure.plotted")) {
      const before = drawn.get(figure);
      const visible = $(".plot", figure).offsetParent !== null;
      if (!before) {
        near.observe(figure);
      } else if (before.text !== $("script", figure).textContent) {
        if (visible) {
          redraw(figure);
        } else {  // a hidden figure has no size
          drawn.delete(figure);
          near.observe(figure);
        }
      }
    }
  }

  const near = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting) {
        near.unobserve(target);
        draw(target);
      }
    }
  }, { rootMargin: "300px" });

  document.addEventListener("click", async ({ target }) => {
    const button = target.closest("[data-reset], [data-save]");
    if (!button) return;
    const figure = button.closest("figure");
    if ("reset" in button.dataset || !drawn.has(figure)) await draw(figure);
    if ("save" in button.dataset) {
      plotly().downloadImage($(".plot", figure), { format: "svg", filename: figure.id });
    }
  });
  document.addEventListener("theme", () => [...drawn.keys()].forEach(draw));
  document.addEventListener("content", update);
  update();
}
