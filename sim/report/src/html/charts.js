// Draws every <figure data-chart> from the data in the page, as SVG. No libraries.
(() => {
  "use strict";
  const { runs, axes } = JSON.parse(document.getElementById("data").textContent);
  const several = runs.length > 1;
  const HEIGHT = 230, TOP = 22, BOTTOM = 36, RIGHT = 14, CHAR = 6.4;

  // ---- Numbers as people read them.
  const trim = (v, digits = 3) => String(Number(v.toPrecision(digits)));
  const count = v => {
    const a = Math.abs(v);
    for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) if (a >= size) return trim(v / (unit === "k" ? 1e3 : size)) + unit;
    return a >= 1000 ? Math.round(v).toLocaleString("en") : trim(v);
  };
  const seconds = s => {
    if (s === 0) return "0 s";
    const a = Math.abs(s);
    if (a < 1e-6) return trim(s * 1e9) + " ns";
    if (a < 1e-3) return trim(s * 1e6) + " µs";
    if (a < 1) return trim(s * 1e3) + " ms";
    if (a < 1000) return trim(s) + " s";
    return Math.round(s).toLocaleString("en") + " s";
  };
  const bytes = v => {
    for (const [size, unit] of [[1e12, "TB/s"], [1e9, "GB/s"], [1e6, "MB/s"], [1e3, "kB/s"]]) if (v >= size) return trim(v / size) + " " + unit;
    return trim(v) + " B/s";
  };
  const perCent = v => String(Number(v < 10 ? v.toFixed(2) : v.toPrecision(3))) + " %";
  const tell = (unit, v) => unit === "time" ? seconds(v) : unit === "bytes/s" ? bytes(v) : unit === "%" ? perCent(v) : `${count(v)} ${unit}`;

  // ---- Axes.
  const ticks = (hi, n) => {
    if (!(hi > 0)) return [0, 1];
    const rough = hi / n, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map(m => m * power).find(s => s >= rough * 0.999);
    const out = [];
    for (let i = 0; i === 0 || out[i - 1] < hi * 0.999; i++) out.push(Number((i * step).toPrecision(12)));
    return out;
  };
  const timeUnit = end => end <= 180 ? [1, "s"] : end <= 10800 ? [60, "min"] : end <= 4 * 86400 ? [3600, "h"] : [86400, "days"];
  // The densest list of ticks whose labels do not touch. Lists of round numbers come with the page.
  const roomiest = (lists, format, place) => {
    const apart = ticks => ticks.map(v => place(v, format(v))).every(({ from }, i, all) => i === 0 || from - all[i - 1].to >= 8);
    return lists.find(apart) || lists[lists.length - 1];
  };

  // ---- Elements.
  const SVG = "http://www.w3.org/2000/svg";
  const svg = (name, attributes, parent, text) => {
    const element = document.createElementNS(SVG, name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (text !== undefined) element.textContent = text;
    return parent ? parent.appendChild(element) : element;
  };
  const html = (name, cls, parent, text) => {
    const element = document.createElement(name);
    if (cls) element.className = cls;
    if (text !== undefined) element.textContent = text;
    return parent ? parent.appendChild(element) : element;
  };
  const colour = i => `var(--s${i % 8})`;
  const round = v => Math.round(v * 10) / 10;

  const key = (item, area) => {
    const mark = html("i", "key" + (area ? " area" : "") + (item.dash ? " dash" : ""));
    mark.style[area ? "background" : "borderTopColor"] = item.colour;
    return mark;
  };
  // Series that are switched off, by key. An item with several keys is shown if none of them is off; its button switches the last one, in all charts.
  const off = new Set();
  const isOn = keys => keys.every(key => !off.has(key));
  const ofRun = i => `run ${i}`, ofPart = name => `part ${name}`;
  const shownRuns = () => [...runs.keys()].filter(i => isOn([ofRun(i)]));
  const shown = items => items.filter(item => isOn(item.keys));
  const button = (li, item) => {
    const key = item.keys[item.keys.length - 1];
    const it = html("button", "", li);
    it.type = "button";
    it.dataset.key = key;
    it.setAttribute("aria-pressed", String(!off.has(key)));
    it.title = `${item.name}: show or hide in all charts`;
    return it;
  };
  const legend = (figure, items, area) => {
    if (items.length < 2 && !items[0].named) return;
    const list = html("ul", "legend", figure);
    for (const item of items) {
      const it = button(html("li", "", list), item);
      it.append(key(item, area));
      html("span", "", it, item.name);
    }
  };

  // ---- One plot: a frame with axes, a drawing in it, and what the pointer reads.
  // x: {lo, hi, log, ticks (on a logarithmic axis lists, densest first; else of a width), format, title}, y: {hi, ticks, format, title}, draw(g, X, Y), read(x) -> {x, title, rows: [[item, text, y]]}
  const plot = (panel, spec) => {
    const width = Math.max(180, panel.clientWidth || 560), height = spec.height || HEIGHT;
    const labels = spec.y.ticks.map(spec.y.format);
    const left = Math.max(30, Math.max(...labels.map(l => l.length)) * CHAR + 10);
    const w = width - left - RIGHT, h = height - TOP - BOTTOM, { x, y } = spec;
    const scale = x.log ? v => Math.log(Math.max(v, x.lo) / x.lo) / Math.log(x.hi / x.lo) : v => (v - x.lo) / ((x.hi - x.lo) || 1);
    const X = v => round(left + w * scale(v)), Y = v => round(TOP + h * (1 - v / y.hi));
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spec.label, tabindex: 0 }, panel);
    y.ticks.forEach((v, i) => {
      svg("line", { class: v === 0 ? "axis" : "gridline", x1: left, x2: left + w, y1: Y(v), y2: Y(v) }, root);
      svg("text", { x: left - 6, y: Y(v) + 4, "text-anchor": "end" }, root, labels[i]);
    });
    svg("text", { x: 0, y: 11 }, root, y.title);
    // Labels at the edges stay within them.
    const place = (v, text) => {
      const at = X(v), wide = text.length * CHAR;
      const near = at > left + w - 16 ? "end" : at < left + 12 && x.log ? "start" : "middle";
      const anchor = near === "end" ? Math.max(at, left + w) : at, from = anchor - { start: 0, middle: wide / 2, end: wide }[near];
      return { at, near, anchor, from, to: from + wide };
    };
    for (const v of x.log ? roomiest(x.ticks, x.format, place) : x.ticks(w)) {
      const { at, near, anchor } = place(v, x.format(v));
      if (x.log) svg("line", { class: "gridline", x1: at, x2: at, y1: TOP, y2: TOP + h }, root);
      svg("line", { class: "axis", x1: at, x2: at, y1: TOP + h, y2: TOP + h + 4 }, root);
      svg("text", { x: anchor, y: TOP + h + 16, "text-anchor": near }, root, x.format(v));
    }
    svg("text", { x: left + w, y: height - 5, "text-anchor": "end" }, root, x.title);
    spec.draw(svg("g", {}, root), X, Y);
    hover(panel, root, spec, { left, w, h, X, Y, width });
  };

  // A line and a box with the values nearest to the pointer; arrow keys do the same.
  const hover = (panel, root, spec, { left, w, h, X, Y, width }) => {
    const marks = svg("g", { visibility: "hidden" }, root);
    const tip = html("div", "tip", panel);
    tip.hidden = true;
    const { lo, hi, log } = spec.x;
    const show = share => {
      const v = log ? lo * (hi / lo) ** share : lo + (hi - lo) * share;
      const read = spec.read(v);
      if (!read) return hide();
      const at = X(read.x);
      marks.replaceChildren();
      svg("line", { class: "cursor", x1: at, x2: at, y1: TOP, y2: TOP + h }, marks);
      tip.replaceChildren();
      html("b", "", tip, read.title);
      for (const [item, text, value] of read.rows) {
        const row = html("div", "", tip);
        row.append(key(item, true));
        html("span", "", row, item.name);
        html("em", "", row, text);
        if (value !== undefined && value !== null) svg("circle", { cx: at, cy: Y(value), r: 3.2, fill: item.colour }, marks);
      }
      marks.setAttribute("visibility", "visible");
      tip.hidden = false;
      const zoom = root.clientWidth / width || 1, px = at * zoom, room = panel.clientWidth;
      const left = px + 14 + tip.offsetWidth <= room ? px + 14 : px - 14 - tip.offsetWidth;
      tip.style.left = Math.max(0, Math.min(left, room - tip.offsetWidth)) + "px";
      tip.style.top = (root.getBoundingClientRect().top - panel.getBoundingClientRect().top + TOP) + "px";
    };
    const hide = () => { tip.hidden = true; marks.setAttribute("visibility", "hidden"); };
    let share = 0.5;
    root.addEventListener("pointermove", event => {
      const box = root.getBoundingClientRect();
      share = Math.min(1, Math.max(0, ((event.clientX - box.left) * width / box.width - left) / w));
      show(share);
    });
    root.addEventListener("pointerleave", hide);
    root.addEventListener("blur", hide);
    root.addEventListener("keydown", event => {
      const by = { ArrowLeft: -0.01, ArrowRight: 0.01 }[event.key];
      if (!by) return;
      event.preventDefault();
      share = Math.min(1, Math.max(0, share + by));
      show(share);
    });
  };

  // Ticks of one axis are in one unit.
  const onAxis = (hi, unit) => {
    if (unit === "%" ) return v => trim(v);
    const named = unit === "time" ? [[1, " s"], [1e-3, " ms"], [1e-6, " µs"], [1e-9, " ns"]]
      : unit === "bytes/s" ? [[1e12, " TB/s"], [1e9, " GB/s"], [1e6, " MB/s"], [1e3, " kB/s"], [1, " B/s"]]
      : [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"], [0, ""]];
    const [from, name] = named.find(([size]) => hi >= size) || named[named.length - 1];
    const size = name === "k" ? 1e3 : from || 1;
    return v => v === 0 ? "0" : (v / size >= 1000 ? (v / size).toLocaleString("en") : trim(v / size)) + name;
  };
  // A panel for each shown run, all there before any is drawn into: their number decides how wide they are.
  const panelsOf = figure => {
    const panels = html("div", "panels", figure);
    const all = shownRuns().map(i => {
      const panel = html("div", "panel", panels);
      if (several) html("h4", "", panel, runs[i].label).title = runs[i].label;
      return [i, panel];
    });
    if (!all.length) html("p", "empty", figure, ALL_HIDDEN);
    return all;
  };
  const ALL_HIDDEN = "Every run is hidden.";
  const upTo = (hi, unit) => {
    const at = ticks(hi, 4), top = at[at.length - 1];
    return { hi: top, ticks: at, format: onAxis(top, unit), title: unit === "time" || unit === "bytes/s" ? "" : unit };
  };
  const PER_CENT = { hi: 100, ticks: [0, 25, 50, 75, 100], format: v => trim(v), title: "%" };

  // ---- Over time. Values stand in the middle of their buckets.
  const timeAxis = end => {
    const [size, name] = timeUnit(end);
    return {
      lo: 0, hi: end, format: v => trim(v / size, 4), title: `time since the first arrival, ${name}`,
      ticks: w => ticks(end / size, Math.max(2, Math.min(8, Math.floor(w / 70)))).map(v => v * size).filter(v => v <= end * 1.0001),
    };
  };
  const middles = s => s.begin_s.map((b, i) => (b + (i + 1 < s.begin_s.length ? s.begin_s[i + 1] : s.end_s)) / 2);
  const bucketAt = (s, t) => {
    let lo = 0, hi = s.begin_s.length - 1;
    while (lo < hi) { const mid = (lo + hi + 1) >> 1; if (s.begin_s[mid] <= t) lo = mid; else hi = mid - 1; }
    return lo;
  };
  const span = (s, i) => {
    const end = i + 1 < s.begin_s.length ? s.begin_s[i + 1] : s.end_s;
    const [size, name] = timeUnit(s.end_s);
    return `${trim(s.begin_s[i] / size, 4)} to ${trim(end / size, 4)} ${name}`;
  };
  // Stretches in which there was nothing to measure are passed over; one value alone is a dot.
  const path = (xs, ys, X, Y) => {
    const points = xs.map((x, i) => [x, ys[i]]).filter(([, v]) => v !== null).map(([x, v]) => X(x) + " " + Y(v));
    return points.length ? "M" + points.join("L") + (points.length === 1 ? "h.01" : "") : "";
  };
  const greatest = lists => Math.max(0, ...lists.map(list => list.reduce((a, b) => Math.max(a, b ?? 0), 0)));

  // items: [{name, keys, colour, dash, faint, series, values}]
  const lines = (figure, unit, items, empty, fixed) => {
    if (!items.some(item => item.values.some(v => v))) return html("p", "empty", figure, empty);
    legend(figure, items);
    const panel = html("div", "panel", figure);
    const end = Math.max(...items.map(item => item.series.end_s));
    for (const item of items) item.xs = middles(item.series);
    const drawn = shown(items);
    plot(panel, {
      label: figure.querySelector("figcaption").textContent, x: timeAxis(end), y: fixed || upTo(greatest(drawn.map(i => i.values)), unit),
      draw: (g, X, Y) => drawn.slice().reverse().forEach(item => svg("path", {
        class: "line" + (item.faint ? " faint" : ""), d: path(item.xs, item.values, X, Y), style: `stroke:${item.colour}`,
        "stroke-linecap": "round", ...(item.dash ? { "stroke-dasharray": "5 4" } : {}),
      }, g)),
      read: t => {
        const s = items[0].series, at = bucketAt(s, t), x = at < s.begin_s.length ? middles(s)[at] : t;
        const rows = drawn.map(item => {
          const mine = item.series.end_s >= t ? item.values[bucketAt(item.series, t)] : null;
          return [item, mine === null || mine === undefined ? "none" : tell(unit, mine), mine];
        });
        const same = drawn.every(item => item.series.bucket_s === s.bucket_s);
        return { x: same && t <= s.end_s ? x : t, title: same && t <= s.end_s ? span(s, at) : seconds(t), rows };
      },
    });
  };

  // A panel for each run, all of one scale. stack(run): [{name, keys, colour, values}], drawn from the bottom.
  const stacks = (figure, unit, stack, empty, fixed) => {
    const stacked = runs.map(stack);
    const greatestSum = stacks => greatest(stacks.map(parts => (parts[0]?.values || []).map((_, i) => parts.reduce((sum, part) => sum + (part.values[i] ?? 0), 0))));
    if (!(greatestSum(stacked) > 0)) return html("p", "empty", figure, empty);
    legend(figure, stacked[0], true);
    const hi = greatestSum(shownRuns().map(r => shown(stacked[r])));
    const end = Math.max(...runs.map(run => run.series.end_s));
    const height = several ? 190 : HEIGHT;
    for (const [r, panel] of panelsOf(figure)) {
      const run = runs[r], parts = shown(stacked[r]), s = run.series, xs = middles(s);
      plot(panel, {
        height, label: `${several ? run.label + ": " : ""}${figure.querySelector("figcaption").textContent}`, x: timeAxis(end), y: fixed || upTo(hi, unit),
        draw: (g, X, Y) => {
          let below = xs.map(() => 0);
          for (const part of parts) {
            const above = below.map((b, i) => b + (part.values[i] ?? 0));
            // The first and last values reach to the edges, or short runs would be slivers.
            const edge = (ys, i) => [[0, ys[0]], ...xs.map((x, j) => [x, ys[j]]), [s.end_s, ys[ys.length - 1]]][i];
            const n = xs.length + 2, top = [...Array(n).keys()].map(i => edge(above, i)), bottom = [...Array(n).keys()].map(i => edge(below, i)).reverse();
            const d = "M" + [...top, ...bottom].map(([x, y]) => X(x) + " " + Y(y)).join("L") + "Z";
            svg("path", { d, style: `fill:${part.colour}`, opacity: 0.9 }, g);
            below = above;
          }
        },
        read: t => {
          if (t > s.end_s) return null;
          const at = bucketAt(s, t);
          return { x: xs[at], title: span(s, at), rows: parts.slice().reverse().map(part => [part, part.values[at] === null ? "none" : tell(unit, part.values[at])]) };
        },
      });
    }
  };

  // ---- Distributions: the share of values up to x, on a logarithmic axis.
  const cdf = (figure, name, empty) => {
    const axis = axes[name];
    if (!axis) return html("p", "empty", figure, empty);
    const items = runs.map((run, i) => ({ name: run.label, keys: [ofRun(i)], colour: colour(i), dash: i >= 8, points: run.series[name].points })).filter(i => i.points.length);
    legend(figure, items);
    const drawn = shown(items);
    const x = { ...axis, log: true, format: seconds, title: `${figure.querySelector("h3").textContent}, logarithmic` };
    const panel = html("div", "panel", figure);
    plot(panel, {
      label: figure.querySelector("figcaption").textContent, x, y: { hi: 100, ticks: [0, 25, 50, 75, 90, 100], format: v => trim(v), title: "% of requests" },
      draw: (g, X, Y) => drawn.slice().reverse().forEach(item => {
        let d = "", y = 0;
        for (const [value, share] of item.points) { d += (d ? "H" : `M${X(value)} ${Y(0)}H`) + X(value) + "V" + Y(share * 100); y = share; }
        svg("path", { class: "line", d: d + "H" + X(x.hi), style: `stroke:${item.colour}`, ...(item.dash ? { "stroke-dasharray": "5 4" } : {}) }, g);
      }),
      read: at => ({
        x: at, title: `within ${seconds(at)}`,
        rows: drawn.map(item => {
          let share = 0;
          for (const [value, s] of item.points) if (value <= at * 1.000001) share = s;
          return [item, perCent(share >= 0.999 ? Math.floor(share * 1e4) / 100 : share * 100), share * 100];
        }),
      }),
    });
  };

  // ---- Bars: one for each replica.
  const bars = (figure, unit, value, more, fixed) => {
    const all = runs.map(run => run.series.replicas.map(replica => value(replica, run)));
    const hi = greatest(all);
    for (const [r, panel] of panelsOf(figure)) {
      const run = runs[r], values = all[r], n = values.length;
      const item = { name: unit === "%" ? "busy" : "ended", colour: colour(r) };
      plot(panel, {
        height: several ? 170 : 200, label: figure.querySelector("figcaption").textContent, y: fixed || upTo(hi, unit),
        x: { lo: 0, hi: n, format: v => String(v - 0.5), title: "replica", ticks: w => { const by = Math.ceil(n / Math.max(1, w / 34)); return values.map((_, i) => i).filter(i => i % by === 0).map(i => i + 0.5); } },
        draw: (g, X, Y) => values.forEach((v, i) => {
          const wide = X(1) - X(0), gap = Math.min(wide * 0.2, 24);
          svg("rect", { x: X(i) + gap / 2, width: Math.max(0.5, wide - gap), y: Y(v), height: Math.max(0, Y(0) - Y(v)), rx: Math.min(3, wide / 6), style: `fill:${item.colour}` }, g);
        }),
        read: at => {
          const i = Math.min(n - 1, Math.max(0, Math.floor(at)));
          return { x: i + 0.5, title: `replica ${i}`, rows: [[item, tell(unit, values[i])], ...more(run.series.replicas[i]).map(([name, text]) => [{ name, colour: "transparent" }, text])] };
        },
      });
    }
  };

  // ---- Runs side by side: a bar for each.
  const contest = (figure, unit, value) => {
    const values = runs.map(value), hi = Math.max(...values);
    if (!(hi > 0)) return html("p", "empty", figure, "Zero in all runs.");
    const drawn = shownRuns();
    if (!drawn.length) return html("p", "empty", figure, ALL_HIDDEN);
    const panel = html("div", "panel", figure), row = 26, width = Math.max(240, panel.clientWidth || 560);
    const root = svg("svg", { viewBox: `0 0 ${width} ${drawn.length * (row + 16)}`, role: "img", "aria-label": figure.querySelector("figcaption").textContent }, panel);
    drawn.forEach((i, at) => {
      const run = runs[i], y = at * (row + 16), text = tell(unit, values[i]), room = width - text.length * 7.2 - 10, w = Math.max(2, room * values[i] / hi);
      const most = Math.floor(width / 6.2);
      svg("text", { x: 0, y: y + 11 }, root, run.label.length > most ? run.label.slice(0, most - 1) + "…" : run.label);
      svg("rect", { x: 0, y: y + 17, width: round(w), height: row - 12, rx: 3, style: `fill:${colour(i)}` }, root);
      svg("text", { x: round(w) + 6, y: y + 29, style: "fill:var(--ink);font-weight:600" }, root, text);
    });
  };

  // ---- What each chart shows.
  const each = column => runs.map((run, i) => ({ name: run.label, keys: [ofRun(i)], colour: colour(i), dash: i >= 8, series: run.series, values: run.series[column] }));
  const percent = list => list.map(v => v === null ? null : v * 100);
  // Of one run the mean and the most; of several the means.
  const withMost = (column, most) => several ? each(column) : [
    { name: "mean", keys: [ofPart("mean")], colour: colour(0), series: runs[0].series, values: runs[0].series[column] },
    { name: "most at any time", keys: [ofPart("most")], colour: colour(1), faint: true, series: runs[0].series, values: runs[0].series[most] },
  ];
  const part = (name, c, values) => ({ name, keys: [ofPart(name)], colour: c, values });
  const ofDevice = (run, column) => run.series[column].map(v => 100 * v / (run.series.device_blocks || 1));
  const named = (run, name) => several ? `${run.label}: ${name}` : name;
  const byName = list => runs.flatMap((run, r) => list(run).map((it, i) => ({ ...it, name: named(run, it.name), keys: [ofRun(r), ofPart(named(run, it.name))], colour: colour(several ? r : i), dash: several && i % 2 === 1, faint: several && i > 1, named: true, series: run.series })));
  // Found over all, from a fortieth of the replay before each stretch to a fortieth after: alone a stretch may have one request or none.
  const hits = s => {
    const around = Math.max(1, Math.round(s.begin_s.length / 40));
    return s.begin_s.map((_, i) => {
      let found = 0, all = 0;
      for (let j = Math.max(0, i - around); j <= i + around && j < s.begin_s.length; j++) { found += s.cached_tokens_s[j]; all += s.cached_tokens_s[j] + s.uncached_tokens_s[j]; }
      return all > 0 ? 100 * found / all : null;
    });
  };
  const latency = (name, at) => run => run.report[name][at];

  const CHARTS = {
    ttft: f => cdf(f, "ttft", "No request was completed."),
    tpot: f => cdf(f, "tpot", "No request had two tokens or more."),
    e2e: f => cdf(f, "e2e", "No request was completed."),
    queue: f => cdf(f, "queue", runs.some(run => run.series.queue.n) ? "No request waited: each began to run when it arrived." : "No request was completed."),
    "ttft-time": f => lines(f, "time", each("ttft_mean_s"), "No request was completed."),
    output: f => lines(f, "tokens/s", each("output_tokens_s"), "No token was generated."),
    requests: f => lines(f, "requests/s", several ? each("completed_s") : [
      { name: "completed", keys: [ofPart("completed")], colour: colour(0), series: runs[0].series, values: runs[0].series.completed_s },
      { name: "arrived", keys: [ofPart("arrived")], colour: colour(4), faint: true, series: runs[0].series, values: runs[0].series.arrived_s },
    ], "No request was completed."),
    prompt: f => stacks(f, "tokens/s", run => [part(run.report.copied_tokens ? "computed or copied" : "computed", colour(4), run.series.uncached_tokens_s), part("found in the cache", colour(2), run.series.cached_tokens_s)], "No request was admitted."),
    utilisation: f => lines(f, "%", each("utilisation").map(i => ({ ...i, values: percent(i.values) })), "No step ran.", PER_CENT),
    waiting: f => lines(f, "requests", withMost("waiting", "waiting_max"), "No request was seen waiting when a step began."),
    running: f => lines(f, "requests", withMost("running", "running_max"), "No step ran."),
    composition: f => stacks(f, "sequences", run => [part("decodes", colour(0), run.series.decodes), part("prefills", colour(4), run.series.prefills)], "No step ran."),
    "step-tokens": f => stacks(f, "tokens", run => [part("of decodes", colour(0), run.series.decode_tokens), part("of prefills", colour(4), run.series.prefill_tokens)], "No step ran."),
    "step-time": f => lines(f, "time", each("step_s"), "No step ran."),
    preemptions: f => lines(f, "preemptions/s", each("preemptions_s"), "No request was preempted: blocks sufficed for all that ran."),
    aside: f => lines(f, "requests", byName(run => [{ name: "loading", values: run.series.loading }, { name: "swapped", values: run.series.swapped }].filter(i => i.values.some(v => v))),
      "No request waited for a tier, and none was swapped out."),
    device: f => stacks(f, "%", run => [part("in use", colour(0), ofDevice(run, "blocks_in_use")), part("cached", colour(2), ofDevice(run, "blocks_cached")), part("empty", "var(--none)", ofDevice(run, "blocks_free"))], "No step ran.", PER_CENT),
    hits: f => lines(f, "%", each("hit_ratio").map(i => ({ ...i, values: hits(i.series) })), "No prompt token was found in the cache."),
    tiers: f => lines(f, "%", byName(run => run.series.tiers.map(t => ({ name: t.name, values: t.blocks.map(b => 100 * b / (t.capacity_blocks || 1)) }))), runs.some(run => run.series.tiers.length) ? "The tiers stayed empty." : "There is no tier behind the devices.", PER_CENT),
    links: f => lines(f, "bytes/s", byName(run => run.series.links.map(l => ({ name: l.name, values: l.bytes_s }))), "Nothing was copied: there is no tier behind the devices, and no request was swapped out."),
    ready: f => lines(f, "replicas", withMost("ready", "ready_max"), "No replica was ready."),
    busy: f => bars(f, "%", (replica, run) => run.series.end_s ? 100 * replica.busy_ns / 1e9 / run.series.end_s : 0, r => [["requests", count(r.completed)], ["output tokens", count(r.output_tokens)]], PER_CENT),
    shares: f => bars(f, "requests", replica => replica.completed, r => [["found in the cache", perCent(r.prompt_tokens ? 100 * r.cached_tokens / r.prompt_tokens : 0)]]),
    "contest-ttft": f => contest(f, "time", latency("ttft_s", "p99")),
    "contest-tpot": f => contest(f, "time", latency("tpot_s", "p99")),
    "contest-e2e": f => contest(f, "time", latency("e2e_s", "p99")),
    "contest-hits": f => contest(f, "%", run => 100 * run.report.prefix_hit_ratio),
  };

  const draw = figure => {
    [...figure.children].filter(child => !["H3", "FIGCAPTION"].includes(child.tagName)).forEach(child => child.remove());
    CHARTS[figure.dataset.chart](figure);
  };
  const figures = [...document.querySelectorAll("figure[data-chart]")];
  const widths = new Map();
  const redraw = () => figures.forEach(figure => {
    if (widths.get(figure) === figure.clientWidth) return;
    widths.set(figure, figure.clientWidth);
    draw(figure);
  });
  redraw();
  // The legend at the top is plain until the script makes buttons of it.
  const top = [...document.querySelectorAll(".legend.runs li")].map((li, i) => {
    const parts = [...li.childNodes], it = button(li, { name: runs[i].label, keys: [ofRun(i)] });
    it.append(...parts);
    return it;
  });
  document.addEventListener("click", event => {
    const it = event.target.closest(".legend button");
    if (!it) return;
    const { key } = it.dataset, figure = it.closest("figure");
    if (!off.delete(key)) off.add(key);
    for (const button of top) button.setAttribute("aria-pressed", String(!off.has(button.dataset.key)));
    figures.forEach(draw);
    // Drawing made a new button in the place of the one with the focus.
    if (figure) [...figure.querySelectorAll(".legend button")].find(other => other.dataset.key === key)?.focus();
  });
  // Paper has a width of its own, and charts are drawn for a width.
  const onPaper = on => { document.body.classList.toggle("paper", on); redraw(); };
  addEventListener("beforeprint", () => onPaper(true));
  addEventListener("afterprint", () => onPaper(false));
  let waiting = 0;
  addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(redraw); });
})();
