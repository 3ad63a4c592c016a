// Replaces the content of a live page while the sweep runs. Keeps the scroll position, open parts,
// zoom, filters and focus, because elements that stay are changed and not replaced.
{
  const POLL = 2000, TIMEOUT = 30000;  // milliseconds
  const LOST = "The page is not updated: the server does not answer. It may have ended; " +
    "`ascl-sweep report --watch` starts it again, with a new URL.";
  let version = JSON.parse($("#live").textContent);
  let timer = null;
  let polling = false;

  const clock = make("p", { id: "clock" });
  const notice = make("p", { id: "notice", role: "status", hidden: true });
  $(".brand").after(clock);
  document.body.append(notice);
  // `keepPlace` does this; both together would scroll twice.
  document.documentElement.style.overflowAnchor = "none";

  let updated = "";

  function show(problem) {
    if (notice.textContent !== problem) notice.textContent = problem;
    notice.hidden = !problem;
    clock.classList.toggle("late", Boolean(problem));
    if (!problem) updated = new Date().toLocaleTimeString("en-GB");
    clock.textContent = problem ? `last update ${updated}` : `live, ${updated}`;
  }

  // -------------------------------------------------------------- change elements

  // Figures are numbered, and a new one may come first.
  const nameOf = (node) =>
    node.matches?.("figure.plotted") ? $("h4", node).textContent : node.dataset?.sweep ?? node.id ?? "";
  const isSame = (a, b) => a.nodeName === b.nodeName && nameOf(a) === nameOf(b);

  /** Change an element into another one of the same name. */
  function change(from, to) {
    if (from.nodeType !== Node.ELEMENT_NODE) {
      if (from.data !== to.data) from.data = to.data;
      return;
    }
    const plot = from.matches(".plot");
    for (const { name, value } of to.attributes) {
      if (name === "tabindex" || (plot && name === "style")) continue;
      const kept = name === "class" && from.matches(".drawn") ? `${value} drawn` : value;
      if (from.getAttribute(name) !== kept) from.setAttribute(name, kept);
    }
    if (!plot) return changeChildren(from, to);
    from.style.minWidth = to.style.minWidth;
    from.style.height = to.style.height;
  }

  function changeChildren(from, to, fixed = null) {
    const old = [...from.childNodes].filter((node) => node !== fixed);
    let next = from.firstChild;
    for (const wanted of to.childNodes) {
      const at = old.findIndex((node) => isSame(node, wanted));
      const node = at < 0 ? document.importNode(wanted, true) : old.splice(at, 1)[0];
      if (at >= 0) change(node, wanted);
      if (node === next) next = next.nextSibling;
      else from.insertBefore(node, next);
    }
    old.forEach((node) => node.remove());
  }

  const parse = (html) => new DOMParser().parseFromString(html, "text/html").body;

  // -------------------------------------------------------------- scroll position

  /** Return what must not move: the focused element if it is visible, else the top of the window. */
  function findAnchor() {
    const edge = $(".bar").getBoundingClientRect().bottom;
    const focused = document.activeElement.closest("main *");
    const { top } = focused?.getBoundingClientRect() ?? {};
    if (top >= edge && top < innerHeight) return focused.closest("#list tr") ?? focused;
    const parts = $$("main :is(section, h2, h3, figure, details, .table, #filters, #list tr)");
    return parts.filter((part) => part.checkVisibility() && part.getBoundingClientRect().top <= edge).at(-1);
  }

  /** Return a function that scrolls back to what the reader sees now. */
  function keepPlace() {
    const anchor = scrollY > 0 && findAnchor();
    if (!anchor) return () => {};
    const { top } = anchor.getBoundingClientRect();
    // The rows of the list are replaced; a run is the same by its id.
    const id = anchor.matches("#list tr") ? $(".run", anchor)?.textContent : undefined;
    return () => {
      const run = id && $$("#list .run").find((button) => button.textContent === id);
      const part = run ? run.closest("tr") : anchor;
      if (part.isConnected) scrollBy({ top: part.getBoundingClientRect().top - top, behavior: "instant" });
    };
  }

  // -------------------------------------------------------------- poll

  function replace(content) {
    const back = keepPlace();
    const sweep = sweepFilter.value;
    changeChildren($("main"), parse(content.body), $("#runs"));
    changeChildren(sweepFilter, $("select", parse(`<select><option value="">all</option>${content.choices}</select>`)));
    sweepFilter.value = sweep;
    if (sweepFilter.selectedIndex < 0) sweepFilter.value = "";
    $("#report").textContent = content.report;
    $("#runs-data").textContent = content.runs;
    document.dispatchEvent(new Event("content"));
    back();
  }

  async function poll() {
    if (polling) return;
    polling = true;
    clearTimeout(timer);
    try {
      const options = { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT) };
      const answer = await fetch(`update?version=${version}`, options);
      if (!answer.ok) throw new Error(answer.statusText);
      const found = await answer.json();
      if (found.content) replace(found.content);
      version = found.version;
      show(found.notice);
    } catch (error) {
      if (error instanceof TypeError || error instanceof DOMException) show(LOST);
      else show(`The page is not updated: ${error.message}`);
    }
    polling = false;
    if (!document.hidden) timer = setTimeout(poll, POLL);
  }

  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (!document.hidden) poll();
  });
  show("");
  poll();
}
