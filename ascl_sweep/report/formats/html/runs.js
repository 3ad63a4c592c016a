"use strict";
// The list of runs with filters, sorting and paging, and the details of a run.
{
  const PAGE = 50;
  let data;
  const pick = (column, i) => column.of[column.at ? column.at[i] : 0];
  const run = (name, i) => pick(data.columns[name], i);
  const missing = (value) => value === null || value === undefined;
  const fixed = (digits) => (value) => (missing(value) ? "–" : value.toFixed(digits));
  const plain = (value) => (missing(value) ? "–" : String(value));

  const COLUMNS = [
    { name: "id", title: "run" },
    { name: "state", title: "state" },
    { name: "arm", title: "arm" },
    { name: "sweeps", title: "sweep", show: (value) => value.join(", ") },
    { name: "phase", title: "phase" },
    { name: "seed", title: "seed", number: true, show: plain },
    { name: "epochs", title: "epochs", number: true, show: plain },
    { name: "knn", title: "kNN %", number: true, show: fixed(2) },
    { name: "probe", title: "probe %", number: true, show: fixed(2) },
    { name: "hours", title: "device h", number: true, show: fixed(2) },
  ];
  const order = { name: null, down: false };
  let chosen = [];
  let first = 0;

  // -------------------------------------------------------------- filters

  let texts, varying, constant;

  function load() {
    data = JSON.parse($("#runs-data").textContent);
    texts = null;
    varying = Object.entries(data.config).filter(([, column]) => column.at);
    constant = Object.entries(data.config)
      .filter(([, column]) => !column.at)
      .map(([key, column]) => `${key}=${column.of[0]}`.toLowerCase());
    countStates();
  }

  /** Return the text that the search box matches: a run's words and its varying config keys. */
  function textOf(i) {
    const words = ["id", "arm", "state", "phase", "error", "stopped", "host", "device"];
    return [
      ...words.map((name) => run(name, i)),
      ...run("sweeps", i),
      run("state", i),
      ...varying.map(([key, column]) => (column.at[i] < 0 ? "" : `${key}=${pick(column, i)}`)),
    ].filter((word) => word).join("\n").toLowerCase();
  }

  function choose() {
    first = 0;
    filter();
    list();
  }

  function filter() {
    const words = $("#text").value.toLowerCase().split(/\s+/).filter((word) => word);
    const states = new Set($$("#states input:checked").map((box) => box.value));
    const sweep = sweepFilter.value;
    // A config value that all runs share matches only a search for key=value.
    const asked = words.filter((w) => !(w.includes("=") && constant.some((c) => c.startsWith(w))));
    if (asked.length && !texts) texts = Array.from({ length: data.count }, (_, i) => textOf(i));
    chosen = [];
    for (let i = 0; i < data.count; i++) {
      if (sweep && !run("sweeps", i).includes(sweep)) continue;
      if (states.size && !states.has(run("state", i))) continue;
      if (!asked.every((word) => texts[i].includes(word))) continue;
      chosen.push(i);
    }
    sort();
  }

  /** Show new data; keep the page of the list, its open runs and the focus. */
  function reload() {
    const focused = document.activeElement.matches("#list .run") && document.activeElement.textContent;
    const open = new Set($$("#list .run[aria-expanded=true]").map((button) => button.textContent));
    load();
    filter();
    first = Math.max(0, Math.min(first, PAGE * Math.floor((chosen.length - 1) / PAGE)));
    list();
    for (const button of $$("#list .run")) {
      if (open.has(button.textContent)) button.click();
      if (button.textContent === focused) button.focus({ preventScroll: true });
    }
  }

  function sort() {
    if (order.name === null) return;
    const { number } = COLUMNS.find((column) => column.name === order.name);
    const sign = order.down ? -1 : 1;
    const words = new Intl.Collator("en", { numeric: true });
    chosen.sort((i, j) => {
      const a = run(order.name, i), b = run(order.name, j);
      if (missing(a) || missing(b)) return missing(a) - missing(b);  // missing values last, in both directions
      return sign * (number ? a - b : words.compare(a, b));
    });
  }

  // -------------------------------------------------------------- the list

  function head() {
    const cells = COLUMNS.map((column) => {
      const button = make("button", { type: "button" }, column.title);
      const cell = make("th", { scope: "col", class: column.number ? "number" : null }, button);
      button.addEventListener("click", () => {
        // Numbers are first sorted in descending order.
        order.down = order.name === column.name ? !order.down : Boolean(column.number);
        order.name = column.name;
        for (const other of cell.parentNode.children) other.removeAttribute("aria-sort");
        cell.setAttribute("aria-sort", order.down ? "descending" : "ascending");
        choose();
      });
      return cell;
    });
    $("#list thead").replaceChildren(make("tr", {}, ...cells));
  }

  function list() {
    const shown = chosen.slice(first, first + PAGE);
    $("#list tbody").replaceChildren(...shown.map(row));
    const count = chosen.length.toLocaleString("en-US"), all = data.count.toLocaleString("en-US");
    const of = chosen.length === data.count ? `${all} runs` : `${count} of ${all} runs`;
    const range = shown.length < chosen.length ? `, ${first + 1} to ${first + shown.length} shown` : "";
    const none = data.count ? "No run matches; remove a filter." : "No runs yet.";
    const found = shown.length ? of + range : none;
    if ($("#found").textContent !== found) $("#found").textContent = found;  // it is announced
    $("#before").disabled = first === 0;
    $("#after").disabled = first + PAGE >= chosen.length;
    $(".pager").hidden = chosen.length <= PAGE;
  }

  function row(i) {
    const id = run("id", i);
    const place = `run-${i}`;
    const button = make("button", {
      type: "button", class: "run", "aria-expanded": "false", "aria-controls": place,
    }, id);
    const cells = COLUMNS.slice(1).map(({ name, number, show }) => {
      const value = run(name, i);
      if (name === "state") return make("td", {}, state(value));
      return make("td", { class: number ? "number" : name }, show ? show(value) : plain(value));
    });
    const line = make("tr", {}, make("th", { scope: "row" }, button), ...cells);
    button.addEventListener("click", () => {
      const open = button.getAttribute("aria-expanded") === "true";
      button.setAttribute("aria-expanded", !open);
      if (open) {
        line.nextSibling.remove();
        return;
      }
      const inside = make("div", {
        class: "details", id: place, role: "group", "aria-label": `Run ${id}`,
      });
      line.after(make("tr", { class: "opened" }, make("td", { colspan: COLUMNS.length }, inside)));
      inside.append(...details(i, inside.clientWidth));
    });
    return line;
  }

  const state = (name) => make("span", { class: `state ${name}` }, name);

  // -------------------------------------------------------------- details

  function details(i, width) {
    const parts = [];
    const because = run("error", i) ?? run("stopped", i);
    if (because) {
      const title = run("error", i) ? "Error" : run("audit", i) ? "Would have been stopped" : "Stopped";
      parts.push(make("h3", {}, title), make("p", { class: "because" }, because));
    }
    if (run("curve", i)) parts.push(make("h3", {}, "Online kNN top-1"), curve(i, width));
    parts.push(make("div", { class: "columns" }, part("Config", config(i)), part("Facts", facts(i))));
    if (run("log", i)) {
      const path = run("log", i).replaceAll("*", run("id", i));
      parts.push(make("h3", {}, "Log"), make("p", { class: "path" }, path));
      const tail = run("tail", i);
      parts.push(tail
        ? make("pre", { tabindex: "0", "aria-label": "Last lines of the log" }, tail)
        : make("p", { class: "none" }, "The log’s text is not in this page."));
    }
    return parts;
  }

  const part = (title, list) => make("div", {}, make("h3", {}, title), list);

  const pairs = (entries) =>
    make("dl", {}, ...entries.map(([key, value, note]) =>
      make("div", { class: note ?? null }, make("dt", {}, key), make("dd", {}, value))));

  /** Show the config; keys that differ between runs come first. */
  function config(i) {
    const idle = new Set(run("idle", i));
    const own = Object.entries(data.config).filter(([, column]) => !column.at || column.at[i] >= 0);
    const ordered = [...own.filter(([, c]) => c.at), ...own.filter(([, c]) => !c.at)];
    return pairs(ordered.map(([key, column]) => {
      const value = pick(column, i);
      if (idle.has(key)) return [key, `${value} (no effect)`, "idle"];
      return [key, value, column.at ? "varies" : null];
    }));
  }

  function facts(i) {
    const time = (seconds) => new Date(1000 * seconds).toISOString().slice(0, 16).replace("T", " ");
    const entries = [
      ["state", run("state", i)],
      ["phase, scale", `${run("phase", i)}, ${run("scale", i)}`],
      ["sweeps", run("sweeps", i).join(", ")],
      ["epochs", [run("epochs", i), run("planned", i)].filter((n) => !missing(n)).join(" of ")],
      ["kNN, last and best", [run("knn", i), run("knn_best", i)].map(fixed(2)).join(", ")],
      ["probe", missing(run("probe", i)) ? null : fixed(2)(run("probe", i))],
      ["started, ended (UTC)", missing(run("started", i)) ? null
        : [run("started", i), run("ended", i)].filter((t) => !missing(t)).map(time).join(", ")],
      ["training, evaluation", `${run("train", i)} s, ${run("eval", i)} s`],
      ["images/s", missing(run("speed", i)) ? null : fixed(1)(run("speed", i))],
      ["device hours", fixed(3)(run("hours", i))],
      ["device", run("device", i)],
      ["host, workers", run("host", i) ? `${run("host", i)}, ${run("workers", i)}` : null],
      ["commit", run("commit", i)],
      ["versions", run("versions", i)],
    ];
    return pairs(entries.filter(([, value]) => value));
  }

  // -------------------------------------------------------------- curve

  function points(i) {
    const [start, step, text] = run("curve", i);
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    return Array.from({ length: bytes.length / 2 }, (_, k) => {
      const value = view.getUint16(2 * k, true);
      return { epoch: start + k * step, score: value > data.full ? null : (100 * value) / data.full };
    }).filter(({ score }) => score !== null);
  }

  /** Return about `count` round numbers within a range. */
  function ticks(low, high, count) {
    const rough = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((n) => n * power >= rough);
    const found = [];
    for (let t = Math.ceil(low / step) * step; t <= high + step / 1e6; t += step) found.push(t);
    return { found, digits: Math.max(0, -Math.floor(Math.log10(step))) };
  }

  function curve(i, width) {
    const line = points(i);
    if (!line.length) return make("p", {}, "No epoch has a score.");
    const w = Math.min(width, 720), h = 200, left = 44, right = 12, top = 8, bottom = 24;
    const scores = line.map((p) => p.score);
    const low = Math.min(...scores), high = Math.max(...scores);
    const margin = Math.max(high - low, 0.5) * 0.06;
    const start = line[0].epoch, end = line.at(-1).epoch;
    const x = (epoch) => left + ((epoch - start) / (end - start || 1)) * (w - left - right);
    const y = (score) =>
      h - bottom - ((score - low + margin) / (high - low + 2 * margin)) * (h - top - bottom);
    const best = line[scores.indexOf(high)];
    const label = `Online kNN top-1 by epoch: ${scores[0].toFixed(2)}% at epoch ${start}, ` +
      `${scores.at(-1).toFixed(2)}% at epoch ${end}, at most ${high.toFixed(2)}% at epoch ${best.epoch}.`;
    const down = ticks(low, high, 4), along = ticks(start, end, Math.max(2, w / 90));
    const dot = make("circle", { r: 3.5, cx: x(end), cy: y(scores.at(-1)) });
    const path = line.map((p, k) => `${k ? "L" : "M"}${x(p.epoch).toFixed(1)},${y(p.score).toFixed(1)}`);
    const drawing = make("svg", { role: "img", "aria-label": label, width: w, height: h, class: "curve" },
      ...down.found.flatMap((t) => [
        make("line", { x1: left, x2: w - right, y1: y(t), y2: y(t) }),
        make("text", { x: left - 8, y: y(t) + 4, "text-anchor": "end" }, t.toFixed(down.digits)),
      ]),
      ...along.found.filter(Number.isInteger).map((t) =>
        make("text", { x: x(t), y: h - 6, "text-anchor": "middle" }, String(t))),
      make("path", { d: path.join("") }), dot);
    const note = make("figcaption", {}, label);
    drawing.addEventListener("pointermove", (event) => {
      const at = event.clientX - drawing.getBoundingClientRect().left;
      const near = line.reduce((a, b) => (Math.abs(x(b.epoch) - at) < Math.abs(x(a.epoch) - at) ? b : a));
      dot.setAttribute("cx", x(near.epoch));
      dot.setAttribute("cy", y(near.score));
      note.textContent = `Epoch ${near.epoch}: ${near.score.toFixed(2)}%`;
    });
    drawing.addEventListener("pointerleave", () => (note.textContent = label));
    return make("figure", {}, drawing, note);
  }

  // -------------------------------------------------------------- controls

  /** Show the number of runs in each state, with a checkbox for each state that occurs. */
  function countStates() {
    const counts = new Map($$("#states input").map((box) => [box.value, 0]));
    for (let i = 0; i < data.count; i++) counts.set(run("state", i), (counts.get(run("state", i)) ?? 0) + 1);
    for (const [name, count] of counts) {
      let box = $$("#states input").find((each) => each.value === name);
      if (!box) {
        box = make("input", { type: "checkbox", value: name });
        box.addEventListener("change", choose);
        $("#states").append(make("label", {}, box, state(name), make("span", { class: "count" })));
      }
      $(".count", box.parentNode).textContent = String(count);
      box.parentNode.hidden = count === 0 && !box.checked;
    }
  }
  let typing;
  $("#text").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(choose, 120);
  });
  $("#filters").addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("sweep", choose);
  document.addEventListener("content", reload);
  const turn = (pages) => () => {
    first += pages * PAGE;
    list();
    $("#runs").scrollIntoView();
  };
  $("#before").addEventListener("click", turn(-1));
  $("#after").addEventListener("click", turn(1));
  load();
  head();
  choose();
}
