"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;

  // Words and numbers

  const grouped = (value) => Math.round(value).toLocaleString("en-US");

  function number(value) {
    if (value === null || Number.isNaN(value)) return "–";
    if (value === Math.round(value) || Math.abs(value) >= 1000) return grouped(value);
    return value.toFixed(Math.abs(value) >= 10 ? 1 : 2);
  }

  function duration(seconds) {
    if (seconds === null || Number.isNaN(seconds)) return "–";
    if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
    if (seconds < 1) return `${Number((seconds * 1000).toPrecision(3))} ms`;
    if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
    const whole = Math.round(seconds);
    const two = (value) => String(value).padStart(2, "0");
    if (whole < 3600) return `${Math.floor(whole / 60)}m${two(whole % 60)}s`;
    return `${Math.floor(whole / 3600)}h${two(Math.floor((whole % 3600) / 60))}m`;
  }

  function made(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  // CSV: made here, of what is in the page

  function cell(value) {
    if (value === null || value === undefined || Number.isNaN(value)) return "";
    if (typeof value === "number") return String(value);
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }

  function save(name, { head, rows }) {
    const lines = [head, ...rows].map((row) => row.map(cell).join(","));
    const blob = new Blob([`${lines.join("\n")}\n`], { type: "text/csv;charset=utf-8" });
    const link = made("a", { href: URL.createObjectURL(blob), download: `${name}.csv` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  for (const button of document.querySelectorAll("button.csv")) {
    const name = button.dataset.table;
    button.title = `${name}.csv`;
    button.setAttribute("aria-label", `Save ${name}.csv`);
    button.addEventListener("click", () => {
      if (name === "requests") save(name, requests());
      else if (name === "calls-drawn") save(name, recordedCalls());
      else save(name, data.tables[name] ?? data.plays);
    });
  }

  // Figures, drawn as they come into sight

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  function coloured(value) {
    if (typeof value === "string") return value.startsWith("var:") ? colour(value.slice(4)) : value;
    if (Array.isArray(value)) {
      return typeof value[0] === "object" && value[0] !== null ? value.map(coloured) : value;
    }
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, coloured(each)]));
  }

  const isNarrow = (width) => (width ?? window.innerWidth) < 600;

  function layoutOf(figure, width) {
    const layout = coloured(figure.layout);
    const narrow = isNarrow(width);
    const text = colour("--text"), muted = colour("--muted"), edge = colour("--edge");
    for (const [name, axis] of Object.entries(layout)) {
      if (!/^[xy]axis\d*$/.test(name)) continue;
      if (narrow && name[0] === "x" && axis.tickvals?.length > 5) {
        for (const ticks of ["tickvals", "ticktext"]) axis[ticks] = axis[ticks].filter((_, k) => k % 2 === 0);
      }
      layout[name] = {
        gridcolor: edge, linecolor: edge, zerolinecolor: edge, tickcolor: edge, automargin: true,
        nticks: name[0] === "x" ? (narrow ? 5 : 9) : 5, tickangle: 0,
        ...axis,
        tickfont: { color: muted, size: narrow ? 10 : 11 },
        title: { text: axis.title, font: { color: muted, size: narrow ? 11 : 12 }, standoff: 6 },
      };
    }
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, color: text, size: 12 },
      legend: { orientation: "h", x: 0, y: 1.01, yanchor: "bottom", font: { size: 11 } },
      hoverlabel: { bgcolor: colour("--panel"), bordercolor: edge, font: { color: text } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: muted, activecolor: text },
      dragmode: touched ? false : "zoom",
      ...layout,
      margin: { l: 12, r: narrow ? 8 : 14, t: 30, b: 12, ...layout.margin },
      ...(width ? { width } : {}),
    };
  }

  const touched = matchMedia("(pointer: coarse)").matches;
  const drawn = new Set();

  function draw(plot, width) {
    const figure = data.figures[plot.dataset.figure];
    drawn.add(plot);
    return Plotly.react(plot, coloured(figure.data), layoutOf(figure, width), {
      displaylogo: false, responsive: !width, showTips: false, displayModeBar: touched ? false : "hover",
      showSendToCloud: false, plotlyServerURL: "",
      modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
    });
  }

  const plots = [...document.querySelectorAll(".plot")];
  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting && !drawn.has(target)) draw(target);
    }
  }, { rootMargin: "400px" });
  plots.forEach((plot) => watcher.observe(plot));

  // Sessions over time

  const timeline = data.timeline;
  const view = document.querySelector(".view");
  const calls = view && timeline ? opened(timeline) : null;

  function opened({ columns, unit_s: unit }) {
    const found = {};
    const types = { state: Uint8Array, warmup: Uint8Array, ttft: Float32Array, interactivity: Float32Array };
    for (const [name, packed] of Object.entries(columns)) {
      const text = atob(packed), bytes = new Uint8Array(text.length);
      for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
      found[name] = new (types[name] ?? Int32Array)(bytes.buffer);
    }
    const seconds = (column) => Float64Array.from(column, (each) => (each < 0 ? NaN : each * unit));
    for (const name of ["due", "sent", "last", "done"]) found[name] = seconds(found[name]);
    return found;
  }

  function requests() {
    const { plays, agents, kinds, messages, states, n } = timeline;
    const head = ["user", "visit", "session", "call", "calls", "agent", "warmup", "due_s", "sent_s",
      "ttft_s", "last_token_s", "done_s", "interactivity", "input_tokens", "output_tokens",
      "cached_tokens", "reusable_tokens", "outcome", "failure", "message"];
    const known = (value) => (value < 0 ? null : value);
    const fine = (value) => (Number.isNaN(value) ? null : Number(value.toPrecision(7)));
    const order = Array.from({ length: n }, (_, i) => i).sort((a, b) => calls.sent[a] - calls.sent[b]);
    return { head, rows: order.map((i) => {
      const [lane, visit, session, count] = plays[calls.play[i]];
      return [lane, visit, session, calls.call[i], count, agents[calls.agent[i]], calls.warmup[i],
        fine(calls.due[i]), fine(calls.sent[i]), fine(calls.ttft[i]), fine(calls.last[i]),
        fine(calls.done[i]), fine(calls.interactivity[i]), known(calls.isl[i]), known(calls.osl[i]),
        known(calls.cached[i]), known(calls.reuse[i]), states[calls.state[i]],
        kinds[calls.kind[i]] ?? "", messages[calls.message[i]] ?? ""];
    }) };
  }

  // What was recorded has no users, and no waits for first tokens.
  function recordedCalls() {
    const { plays, agents, n } = timeline;
    const head = ["session", "call", "agent", "start_s", "end_s", "input_tokens", "output_tokens", "sent_before_tokens"];
    const fine = (value) => Number(value.toPrecision(9));
    return { head, rows: Array.from({ length: n }, (_, i) => [
      plays[calls.play[i]][2], calls.call[i] + 1, agents[calls.agent[i]], fine(calls.sent[i]),
      fine(calls.done[i]), calls.isl[i], calls.osl[i], calls.reuse[i]]) };
  }

  const [OK, FAILED, CUT, REFUSED] = [0, 1, 2, 3];

  function swimLanes() {
    const { plays, agents, kinds, messages, lanes, n } = timeline;
    const canvas = view.querySelector("canvas"), tip = view.querySelector(".tip");
    const side = document.querySelector(".visit");
    const context = canvas.getContext("2d");
    const AXIS = 24, GAP = 5;
    const rows = lanes.reduce((sum, [, count]) => sum + count, 0);
    const high = rows <= 24 ? 18 : rows <= 60 ? 14 : rows <= 200 ? 10 : 8;

    // Where each row begins: its calls, and its place from above.
    const firstCall = new Int32Array(rows + 1).fill(n);
    for (let i = n - 1; i >= 0; i -= 1) firstCall[calls.row[i]] = i;
    for (let r = rows - 1; r >= 0; r -= 1) firstCall[r] = Math.min(firstCall[r], firstCall[r + 1]);
    const top = new Float64Array(rows + 1);
    const laneOf = [];
    let y = AXIS + GAP;
    for (const [lane, count] of lanes) {
      for (let k = 0; k < count; k += 1) {
        top[laneOf.length] = y;
        laneOf.push([lane, k, count]);
        y += high;
      }
      y += GAP;
    }
    top[rows] = y;
    const whole = y;

    // The end of the call before, of the same agent of the same play.
    const before = new Float64Array(n).fill(NaN);
    const ofPlay = plays.map(() => []);
    const bySending = Array.from({ length: n }, (_, i) => i).sort((a, b) => calls.sent[a] - calls.sent[b]);
    const lastEnd = new Map();
    for (const i of bySending) {
      const key = calls.play[i] * agents.length + calls.agent[i];
      before[i] = lastEnd.get(key) ?? NaN;
      lastEnd.set(key, calls.done[i]);
      ofPlay[calls.play[i]].push(i);
    }

    const until = Math.max(timeline.until_s, 0.001);
    let from = 0, to = until, width = 0, tall = 0;
    let followed = -1, chosen = -1, hovered = -1, drag = null, asked = 0;
    const gutter = () => (width < 500 ? 40 : 64);
    const x = (at) => gutter() + ((at - from) / (to - from)) * (width - gutter() - 6);
    const at = (px) => from + ((px - gutter()) / (width - gutter() - 6)) * (to - from);

    const fill = made("div", { class: "fill" });
    view.append(fill);

    function sized() {
      width = view.clientWidth;
      tall = Math.min(whole, Math.max(160, Math.round(window.innerHeight * 0.7) - 2));
      if (root.classList.contains("printing")) { width = Math.min(width, 660); tall = whole; }
      const scale = window.devicePixelRatio || 1;
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(tall * scale);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${tall}px`;
      view.style.height = `${tall + 2}px`;
      fill.style.height = `${whole - tall}px`;
      paint();
    }

    const soon = () => { asked ||= requestAnimationFrame(() => { asked = 0; paint(); }); };

    function firstEndingAfter(row, moment) {
      let low = firstCall[row], end = firstCall[row + 1];
      while (low < end) {
        const middle = (low + end) >> 1;
        if (calls.done[middle] < moment) low = middle + 1; else end = middle;
      }
      return low;
    }

    function paint() {
      if (!width) return;
      const scale = window.devicePixelRatio || 1;
      const tint = (name) => colour(`--${name}`);
      const [text, muted, edge, soft] = ["text", "muted", "edge", "soft"].map(tint);
      context.setTransform(scale, 0, 0, scale, 0, 0);
      context.clearRect(0, 0, width, tall);
      const scrolled = view.scrollTop, left = gutter();
      context.font = "11px system-ui, sans-serif";
      context.textBaseline = "middle";

      if (timeline.window) {
        const [a, b] = timeline.window.map((each) => Math.min(Math.max(x(each), left), width));
        context.fillStyle = tint("window");
        context.fillRect(a, AXIS, b - a, tall);
      }
      let step = 10 ** Math.floor(Math.log10((to - from) / 6));
      step *= [1, 2, 5, 10].find((each) => (to - from) / (step * each) <= Math.max(3, width / 110));
      const byHours = timeline.recorded && to - from > 300;
      if (byHours) {
        const steps = [60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
        const most = Math.max(3, width / 110);
        step = steps.find((each) => (to - from) / each <= most) ?? Math.ceil(step / 86400) * 86400;
      }
      context.strokeStyle = edge;
      context.lineWidth = 1;
      context.beginPath();
      for (let k = Math.ceil(from / step); k * step <= to; k += 1) {
        const px = Math.round(x(k * step)) + 0.5;
        context.moveTo(px, AXIS);
        context.lineTo(px, tall);
      }
      context.stroke();

      let high0 = 0;
      while (high0 < rows && top[high0] + high < scrolled) high0 += 1;
      context.save();
      context.beginPath();
      context.rect(0, AXIS, width, tall - AXIS);
      context.clip();
      for (let row = high0; row < rows && top[row] - scrolled < tall; row += 1) {
        const py = top[row] - scrolled, [lane, k, count] = laneOf[row];
        if (k === 0) {
          context.fillStyle = soft;
          context.fillRect(0, py, left - 6, count * high);
          context.fillStyle = text;
          const name = timeline.recorded ? lane + 1 : `user ${lane}`;
          const label = width < 500 ? String(name).replace("user ", "") : name;
          if (high >= 10 || lane % Math.ceil(12 / high / count) === 0) {
            context.fillText(label, 4, py + Math.max(high / 2, 7));
          }
        }
        bars(row, py, tint);
      }
      context.restore();

      context.fillStyle = tint("panel");
      context.fillRect(0, 0, width, AXIS);
      context.fillStyle = muted;
      context.textAlign = "center";
      const digits = Math.max(0, -Math.floor(Math.log10(step)));
      for (let k = Math.ceil(from / step); k * step <= to; k += 1) {
        const px = x(k * step);
        if (px < left - 1 || px > width - 14) continue;
        context.fillText(byHours && k ? duration(k * step) : `${(k * step).toFixed(digits)} s`, px, AXIS / 2);
      }
      context.textAlign = "start";
      if (drag && drag.zooms && drag.moved) {
        context.fillStyle = tint("link");
        context.globalAlpha = 0.18;
        context.fillRect(Math.min(drag.x, drag.now), AXIS, Math.abs(drag.now - drag.x), tall);
        context.globalAlpha = 1;
      }
      canvas.dataset.from = from;
      canvas.dataset.to = to;
    }

    // One row: gaps, then waits, then answers, then marks. What would fall on pixels that have the
    // colour already is left out, so that a row costs no more than its pixels.
    function bars(row, py, tint) {
      const begin = firstEndingAfter(row, from), end = firstCall[row + 1], left = gutter();
      const bar = high - (high > 10 ? 5 : 3), by = py + (high - bar) / 2;
      let reached;
      const inColour = (name) => { context.fillStyle = tint(name); reached = [-9, -9]; };
      const strip = (i, a, b, y, tall, least) => {
        const low = Math.max(left, a), far = Math.min(width, Math.max(b, a + least));
        const fades = followed >= 0 && calls.play[i] !== followed ? 1 : 0;
        if (far <= low || far <= reached[fades]) return;
        context.globalAlpha = fades ? 0.14 : 1;
        context.fillRect(Math.max(low, reached[fades]), y, far - Math.max(low, reached[fades]), tall);
        reached[fades] = far;
      };
      const inView = (i) => i < end && calls.sent[i] <= to;
      inColour("muted");
      for (let i = begin; i < end && (i === begin || calls.sent[i - 1] <= to); i += 1) {
        if (before[i] <= to) strip(i, x(before[i]), x(calls.sent[i]), Math.round(py + high / 2), 1, 0);
      }
      for (const [name, of] of [["warm", 1], ["wait", 0]]) {
        inColour(name);
        for (let i = begin; inView(i); i += 1) {
          if (calls.warmup[i] !== of) continue;
          const stop = Number.isNaN(calls.ttft[i]) || of ? calls.done[i] : calls.sent[i] + calls.ttft[i];
          strip(i, x(calls.sent[i]), x(stop), by, bar, 1);
        }
      }
      inColour("decode");
      for (let i = begin; inView(i); i += 1) {
        if (calls.warmup[i] || Number.isNaN(calls.ttft[i])) continue;
        strip(i, x(calls.sent[i] + calls.ttft[i]), x(calls.last[i]), by, bar, 1);
      }
      for (let i = begin, last = -9; inView(i); i += 1) {
        const px = x(calls.done[i]);
        if (calls.state[i] === OK || px < left || px > width || px < last + 2) continue;
        context.globalAlpha = followed >= 0 && calls.play[i] !== followed ? 0.25 : 1;
        mark(calls.state[i], px, py + high / 2, Math.min(5, high / 2 - 0.5), tint);
        last = px;
      }
      context.globalAlpha = 1;
      for (const i of [chosen, hovered]) {
        if (i < 0 || calls.row[i] !== row) continue;
        context.strokeStyle = tint("strong");
        context.lineWidth = i === chosen ? 2 : 1;
        const a = Math.max(left, x(calls.sent[i]));
        context.strokeRect(a - 1, by - 1.5, Math.max(2, x(calls.done[i]) - a) + 2, bar + 3);
      }
    }

    function mark(state, px, py, size, tint) {
      context.beginPath();
      if (state === FAILED) {
        context.strokeStyle = tint("bad");
        context.lineWidth = 2.5;
        context.moveTo(px - size, py - size);
        context.lineTo(px + size, py + size);
        context.moveTo(px - size, py + size);
        context.lineTo(px + size, py - size);
        context.stroke();
      } else if (state === CUT) {
        context.fillStyle = tint("muted");
        context.fillRect(px - 2, py - size - 1, 4, 2 * size + 2);
      } else {
        context.fillStyle = tint("wait");
        context.moveTo(px, py - size);
        context.lineTo(px + size, py + size);
        context.lineTo(px - size, py + size);
        context.fill();
      }
    }

    function callAt(px, py) {
      const down = py + view.scrollTop;
      let low = 0, end = rows;
      while (low < end) {
        const middle = (low + end) >> 1;
        if (top[middle] <= down) low = middle + 1; else end = middle;
      }
      const row = low - 1;
      if (row < 0 || py < AXIS || down > top[row] + high + GAP / 2 || px < gutter() - 4) return -1;
      const near = firstEndingAfter(row, at(px));
      let best = -1, away = 6;
      for (const i of [near - 1, near]) {
        if (i < firstCall[row] || i >= firstCall[row + 1]) continue;
        const gap = Math.max(x(calls.sent[i]) - px, px - x(calls.done[i]), 0);
        if (gap < away) { best = i; away = gap; }
      }
      return best;
    }

    function failure(i) {
      if (calls.state[i] === OK) return "";
      const kind = kinds[calls.kind[i]] ?? "", said = messages[calls.message[i]];
      return `${timeline.states[calls.state[i]]}${kind ? ` · ${kind}` : ""}${said ? `: ${said.slice(0, 200)}` : ""}`;
    }

    function described(i) {
      const [lane, visit, session, count] = plays[calls.play[i]];
      const isl = calls.isl[i], cached = calls.cached[i];
      if (timeline.recorded) {
        const share = Math.round((100 * calls.reuse[i]) / Math.max(1, isl));
        return [
          session, `${agents[calls.agent[i]] || "main agent"} · call ${calls.call[i] + 1} of ${count}`,
          `begins at ${duration(calls.sent[i])}, takes ${duration(calls.done[i] - calls.sent[i])}`,
          `input ${grouped(isl)} (${share} % sent before)`, `output ${grouped(calls.osl[i])}`,
        ].join("\n");
      }
      const found = cached < 0 ? "cached unknown" : `${grouped(cached)} cached, ${Math.round((100 * cached) / Math.max(1, isl))} %`;
      const lines = [
        session,
        `${agents[calls.agent[i]] || "main agent"} · call ${calls.call[i] + 1} of ${count}${calls.warmup[i] ? " · warm-up" : ""}`,
        `user ${lane}, visit ${visit} · sent at ${duration(calls.sent[i])}`,
        `input ${grouped(isl)} (${found})`,
        `output ${calls.osl[i] < 0 ? "–" : grouped(calls.osl[i])} · ${duration(calls.done[i] - calls.sent[i])} in all`,
        `TTFT ${duration(calls.ttft[i])} · ${number(calls.interactivity[i])} tok/s/user`,
        failure(i),
      ];
      return lines.filter(Boolean).join("\n");
    }

    function hover(px, py) {
      const i = callAt(px, py);
      if (i !== hovered) {
        hovered = i;
        tip.hidden = i < 0;
        if (i >= 0) tip.textContent = described(i);
        soon();
      }
      if (i >= 0) {
        const wide = tip.offsetWidth, tallTip = tip.offsetHeight, down = py + view.scrollTop;
        tip.style.left = `${Math.max(0, Math.min(px + 14, width - wide - 4))}px`;
        const below = py + 18 + tallTip < tall;
        tip.style.top = `${below ? down + 18 : Math.max(view.scrollTop, down - tallTip - 12)}px`;
      }
    }

    function follow(play, call, moves) {
      followed = play;
      chosen = call;
      listed();
      for (const row of document.querySelectorAll(".plays tr[data-play]")) {
        row.classList.toggle("chosen", Number(row.dataset.play) === play);
      }
      if (play >= 0 && moves) {
        const those = ofPlay[play];
        const first = Math.min(...those.map((i) => calls.sent[i]));
        const last = Math.max(...those.map((i) => calls.done[i]));
        const margin = Math.max((last - first) * 0.04, until / 1e4);
        show(first - margin, last + margin);
        view.scrollTop = top[calls.row[those[0]]] - tall / 3;
      } else if (call >= 0) {
        reveal(call);
      }
      soon();
    }

    function reveal(i) {
      if (calls.sent[i] > to || calls.done[i] < from) {
        const half = (to - from) / 2, middle = (calls.sent[i] + calls.done[i]) / 2;
        show(middle - half, middle + half);
      }
      const py = top[calls.row[i]] - view.scrollTop;
      if (py < AXIS || py > tall - high) view.scrollTop = top[calls.row[i]] - tall / 2;
    }

    function listed() {
      side.textContent = "";
      if (followed < 0) {
        side.append(made("p", { class: "empty" }, "Click a call to follow its session."));
        return;
      }
      const [lane, visit, session, count] = plays[followed], those = ofPlay[followed];
      const body = made("tbody");
      for (const i of those) {
        const name = `${calls.call[i] + 1}${calls.state[i] === OK ? "" : " ✕"}`;
        const times = timeline.recorded
          ? [duration(calls.done[i] - calls.sent[i]), `${Math.round((100 * calls.reuse[i]) / Math.max(1, calls.isl[i]))} %`]
          : [duration(calls.ttft[i]), number(calls.interactivity[i])];
        const cells = [name, calls.sent[i].toFixed(1), ...times,
          grouped(calls.isl[i]), calls.osl[i] < 0 ? "–" : grouped(calls.osl[i])];
        const pick = made("button", { type: "button", onclick: () => follow(followed, i, false) }, cells[0]);
        const row = made("tr", { class: i === chosen ? "can chosen" : "can", title: described(i), "data-call": i },
          made("td", { class: "figure" }, pick), ...cells.slice(1).map((each) => made("td", { class: "figure" }, each)));
        row.addEventListener("click", (event) => { if (event.target !== pick) pick.click(); });
        body.append(row);
      }
      const heads = ["call", "at (s)", ...(timeline.recorded ? ["took", "reuse"] : ["TTFT", "tok/s"]), "in", "out"];
      const head = made("thead", {}, made("tr", {}, ...heads.map((each) => made("th", { class: "figure", scope: "col" }, each))));
      side.append(
        made("h4", {}, session),
        made("p", { class: "hint" }, `${timeline.recorded ? "" : `user ${lane}, visit ${visit} · `}${those.length} of ${count} calls `),
        made("button", { type: "button", onclick: () => follow(-1, -1, false) }, "let go"),
        made("table", {}, head, body));
      side.querySelector("tr.chosen")?.scrollIntoView({ block: "nearest" });
    }

    function show(a, b) {
      const least = Math.max(timeline.unit_s * 20, until / 1e7);
      const span = Math.min(Math.max(b - a, least), until * 1.02);
      from = Math.min(Math.max(a, -0.01 * until), until * 1.01 - span);
      to = from + span;
      hovered = -1;
      tip.hidden = true;
      soon();
    }

    function zoom(factor, around = (from + to) / 2) {
      show(around - (around - from) * factor, around + (to - around) * factor);
    }

    const pan = (share) => show(from + (to - from) * share, to + (to - from) * share);

    function next(by) {
      if (chosen < 0) return;
      const those = ofPlay[followed], place = those.indexOf(chosen) + by;
      if (place >= 0 && place < those.length) follow(followed, those[place], false);
    }

    const acts = {
      in: () => zoom(0.5), out: () => zoom(2), left: () => pan(-0.4), right: () => pan(0.4),
      all: () => show(-0.01 * until, 1.01 * until),
      window: () => (timeline.window ? show(...timeline.window) : acts.all()),
      next: () => next(1), before: () => next(-1), release: () => follow(-1, -1, false),
    };
    const keys = {
      "+": "in", "=": "in", "-": "out", _: "out", ArrowLeft: "left", ArrowRight: "right",
      Home: "all", n: "next", p: "before", Escape: "release",
    };
    for (const button of document.querySelectorAll("[data-do]")) {
      button.addEventListener("click", acts[button.dataset.do]);
    }
    view.addEventListener("keydown", (event) => {
      const act = acts[keys[event.key]];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
    });
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    view.addEventListener("wheel", (event) => {
      const [px] = place(event);
      if (!(event.ctrlKey || event.metaKey || document.activeElement === view)) return;
      event.preventDefault();
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        pan((event.deltaX || event.deltaY) / 1000);
      } else zoom(1.0015 ** event.deltaY, at(px));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      const [px] = place(event);
      drag = { x: px, now: px, from, to, zooms: event.pointerType !== "touch" && !event.shiftKey, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const [px, py] = place(event);
      if (!drag) { hover(px, py); return; }
      drag.now = px;
      drag.moved ||= Math.abs(px - drag.x) > 4;
      if (drag.moved && !drag.zooms) {
        const by = ((drag.x - px) / (width - gutter())) * (drag.to - drag.from);
        show(drag.from + by, drag.to + by);
      }
      soon();
    });
    canvas.addEventListener("pointerup", (event) => {
      const [px, py] = place(event), was = drag;
      drag = null;
      if (!was) return;
      if (!was.moved) {
        const i = callAt(px, py);
        follow(i < 0 ? -1 : calls.play[i], i, false);
      } else if (was.zooms) show(at(Math.min(was.x, px)), at(Math.max(was.x, px)));
      soon();
    });
    canvas.addEventListener("pointercancel", () => { drag = null; });
    view.addEventListener("pointerleave", () => { hovered = -1; tip.hidden = true; soon(); });
    view.addEventListener("scroll", () => { tip.hidden = true; hovered = -1; soon(); });
    new ResizeObserver(sized).observe(view.parentElement);
    acts.all();
    sized();
    return { follow, sized, paint: soon };
  }

  // Plays of sessions

  function playsTable(follow) {
    const box = document.querySelector(".plays");
    if (!box) return;
    const { head, kinds, rows, plays, shown } = data.plays;
    let by = head.indexOf(data.plays.by), up = false, all = false;
    const says = {
      text: (value) => value, count: grouped, duration,
      number: (value) => Number(value.toPrecision(3)).toString(),
      percent: (value) => `${(value * 100).toFixed(1)} %`,
    };
    const said = (column, value) => (value === null ? "–" : says[kinds[column]](value));

    function fill() {
      const order = rows.map((_, i) => i).sort((a, b) => {
        const [one, two] = [rows[a][by], rows[b][by]];
        if (one === null || two === null) return (one === null) - (two === null);
        const sign = typeof one === "string" ? one.localeCompare(two) : one - two;
        return up ? sign : -sign;
      });
      const heads = shown.map((column) => {
        const sorts = () => { up = by === column ? !up : column === 0; by = column; fill(); };
        const name = head[column].replace(" (s)", "");
        const sign = column === by ? (up ? " ▲" : " ▼") : "";
        const th = made("th", { scope: "col", class: column ? "figure" : "words" },
          made("button", { type: "button", onclick: sorts }, name + sign));
        if (column === by) th.setAttribute("aria-sort", up ? "ascending" : "descending");
        return th;
      });
      const body = made("tbody");
      for (const i of all ? order : order.slice(0, 50)) {
        const can = plays[i] !== null;
        const name = can ? made("button", { type: "button" }, rows[i][0]) : rows[i][0];
        const row = made("tr", can ? { class: "can", "data-play": plays[i] } : {}, made("td", { class: "words" }, name),
          ...shown.slice(1).map((column) => made("td", { class: "figure" }, said(column, rows[i][column]))));
        if (can) row.addEventListener("click", () => {
          follow?.(plays[i], -1, true);
          document.getElementById("figure-timeline")?.scrollIntoView({ block: "nearest" });
        });
        body.append(row);
      }
      box.replaceChildren(made("table", {}, made("thead", {}, made("tr", {}, ...heads)), body));
      if (!all && rows.length > 50) {
        box.append(made("button", { type: "button", onclick: () => { all = true; fill(); } },
          `Show all ${grouped(rows.length)}`));
      }
    }
    fill();
  }

  const swim = calls ? swimLanes() : null;
  if (data.plays) playsTable(swim?.follow);

  // Light and dark, and paper

  function again(width) {
    drawn.forEach((plot) => draw(plot, width));
    swim?.sized();
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => again());
  let narrow = isNarrow();
  window.addEventListener("resize", () => {
    if (narrow !== isNarrow()) again();
    narrow = isNarrow();
  });
  window.addEventListener("beforeprint", () => {
    root.classList.add("printing");
    plots.forEach((plot) => drawn.add(plot));
    again(640);
  });
  window.addEventListener("afterprint", () => {
    root.classList.remove("printing");
    again();
  });
})();
