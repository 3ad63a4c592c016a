"use strict";
// Figures are drawn when they come near the screen, and plotly.js is not even parsed before the first.
{
  const CONFIG = { responsive: true, displayModeBar: false, displaylogo: false, showTips: false };
  const drawn = new Map();

  function plotly() {
    if (!window.Plotly) {
      document.head.append(make("script", {}, $("#plotly").textContent));
    }
    return window.Plotly;
  }

  /** A colour of the style sheet as it is now, light or dark. */
  function colour(name) {
    const probe = make("span", { style: `color: var(--${name})` });
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }

  function template() {
    const ink = colour("ink"), quiet = colour("quiet"), rule = colour("rule");
    const axis = {
      gridcolor: rule, linecolor: rule, zerolinecolor: rule, tickcolor: rule, automargin: true,
      tickfont: { color: quiet }, title: { font: { color: quiet, size: 12 }, standoff: 8 },
    };
    return {
      layout: {
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink },
        colorway: [1, 2, 3, 4, 5, 6, 7, 8].map((n) => colour(`series-${n}`)),
        margin: { l: 56, r: 16, t: 28, b: 48 },
        hoverlabel: { bgcolor: colour("raised"), bordercolor: rule, font: { color: ink } },
        legend: { bgcolor: "rgba(0,0,0,0)" },
        xaxis: axis,
        yaxis: axis,
        annotationdefaults: { font: { color: quiet } },
      },
    };
  }

  function layout(spec) {
    // A finger that drags over a figure wants to scroll the page.
    const dragmode = matchMedia("(pointer: coarse)").matches ? false : "zoom";
    return { dragmode, ...spec.layout, template: template(), autosize: true };
  }

  async function draw(figure) {
    const box = $(".plot", figure);
    const spec = drawn.get(figure) ?? JSON.parse($("script", figure).textContent);
    drawn.set(figure, spec);
    await plotly().newPlot(box, spec.data, layout(structuredClone(spec)), CONFIG);
    figure.classList.add("drawn");
  }

  const near = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting) {
        near.unobserve(target);
        draw(target);
      }
    }
  }, { rootMargin: "300px" });

  for (const figure of $$("figure.plotted")) {
    near.observe(figure);
    $("[data-reset]", figure).addEventListener("click", () => draw(figure));
    $("[data-save]", figure).addEventListener("click", async () => {
      if (!drawn.has(figure)) await draw(figure);
      plotly().downloadImage($(".plot", figure), { format: "svg", filename: figure.id });
    });
  }
  document.addEventListener("theme", () => [...drawn.keys()].forEach(draw));
}
