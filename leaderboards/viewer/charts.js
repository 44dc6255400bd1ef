// Bars, radar and curves, drawn as elements and SVG.
"use strict";

(function () {
  const share = (value, domain) =>
    Math.max(0, Math.min(1, (value - domain[0]) / (domain[1] - domain[0])));
  const percent = (value) => (100 * value).toFixed(2) + "%";

  // Return the range that bars of these intervals share, floor and ceiling in it.
  RB.domain = function (intervals, marks) {
    const known = intervals.flatMap((i) => i.slice(0, 3)).filter((v) => v !== null && v !== undefined);
    const low = Math.min(...marks, ...known);
    const high = Math.max(...marks, ...known);
    const span = Math.max(1e-9, Math.max(...marks) - Math.min(...marks));
    // A far end would squeeze everything else; what lies beyond is shown as such.
    const domain = [
      Math.max(low, Math.min(...marks) - 0.6 * span),
      Math.min(high, Math.max(...marks) + 0.3 * span),
    ];
    const room = 0.05 * (domain[1] - domain[0]);
    return [domain[0] - room, domain[1] + room];
  };

  // Return a bar: interval, mean and marks.  The number beside it says the same.
  RB.bar = function (interval, domain, marks) {
    const [mean, low, high] = interval;
    const bar = RB.el("span", { class: "bar", "aria-hidden": "true" }, RB.el("span", { class: "track" }));
    for (const mark of marks) {
      if (mark !== null && mark !== undefined) {
        bar.append(RB.el("span", { class: "mark", css: { "--at": percent(share(mark, domain)) } }));
      }
    }
    if (mean === null || mean === undefined) return bar;
    if (low !== null && low !== undefined) {
      const css = { "--low": percent(share(low, domain)), "--high": percent(share(high, domain)) };
      bar.append(RB.el("span", { class: "span", css: css }));
    }
    const beyond = mean < domain[0] || mean > domain[1];
    bar.append(
      RB.el("span", { class: beyond ? "dot beyond" : "dot", css: { "--at": percent(share(mean, domain)) } })
    );
    return bar;
  };

  // Return stacked bars with a key: rows of [name, [[kind, count], ...]].
  RB.stacks = function (rows, names, colour) {
    const used = new Set();
    const order = Object.keys(names);
    const list = RB.el("dl", { class: "stacks" });
    for (const [name, counts] of rows) {
      const shown = counts
        .filter(([, count]) => count > 0)
        .sort((a, b) => order.indexOf(a[0]) - order.indexOf(b[0]));
      const total = shown.reduce((sum, [, count]) => sum + count, 0);
      shown.forEach(([kind]) => used.add(kind));
      const words = shown.map(([kind, count]) => (names[kind] || kind) + " " + RB.count(count)).join(", ");
      list.append(
        RB.el("dt", null, name),
        RB.el(
          "dd",
          null,
          RB.el(
            "span",
            { class: "stack", title: words, "aria-hidden": "true" },
            shown.map(([kind, count]) =>
              RB.el("span", { css: { "--share": String(count / total), "--fill": colour(kind) } })
            )
          ),
          RB.el("span", { class: "small" }, words || "none")
        )
      );
    }
    const key = RB.el(
      "ul",
      { class: "key-list", "aria-hidden": "true" },
      order.filter((kind) => used.has(kind)).map((kind) => RB.el("li", null, RB.el("span", { css: { "--fill": colour(kind) } }), names[kind]))
    );
    return RB.el("div", null, list, key);
  };

  // Return a radar chart.  axes: names; rows: {name, values, colour}.
  RB.radar = function (axes, rows) {
    const [width, height, radius] = [380, 264, 104];
    const [middle, centre] = [width / 2, axes.length === 3 ? 150 : height / 2];
    const point = function (axis, value) {
      const angle = (2 * Math.PI * axis) / axes.length - Math.PI / 2;
      return [middle + radius * value * Math.cos(angle), centre + radius * value * Math.sin(angle)];
    };
    const path = (values) =>
      "M" + values.map((value, axis) => point(axis, value).map((c) => c.toFixed(1)).join(" ")).join("L") + "Z";
    const words = rows.map(
      (row) => row.name + ": " + axes.map((axis, i) => axis + " " + RB.number(row.values[i])).join(", ")
    );
    const chart = RB.svg("svg", {
      class: "chart",
      viewBox: "0 0 " + width + " " + height,
      role: "img",
      "aria-label": "Radar of normalized scores. " + (words.join("; ") || "Nothing chosen") + ".",
    });
    for (const ring of [0.25, 0.5, 0.75, 1]) {
      chart.append(RB.svg("path", { class: "ring", d: path(axes.map(() => ring)) }));
    }
    axes.forEach(function (axis, i) {
      const [x, y] = point(i, 1);
      chart.append(RB.svg("path", { class: "ring", d: "M" + middle + " " + centre + "L" + x + " " + y }));
      const [tx, ty] = point(i, 1.13);
      const anchor = Math.abs(tx - middle) < 8 ? "middle" : tx > middle ? "start" : "end";
      chart.append(RB.svg("text", { x: tx, y: ty + 4, "text-anchor": anchor }, axis));
    });
    for (const row of rows) {
      const values = row.values.map((value) => Math.max(0, Math.min(1, value === null ? 0 : value)));
      const css = { fill: row.colour, stroke: row.colour };
      chart.append(RB.svg("path", { class: "shape", d: path(values), css: css }));
      values.forEach(function (value, i) {
        const [x, y] = point(i, value);
        chart.append(RB.svg("circle", { cx: x, cy: y, r: 3, css: { fill: row.colour } }));
      });
    }
    return chart;
  };

  // Return curves over iterations: lines are [class, values].
  RB.curves = function (iterations, lines, alarms, label) {
    const [width, height, left, bottom] = [280, 130, 38, 18];
    const known = lines.flatMap(([, values]) => values).filter((value) => value !== null);
    const first = iterations[0];
    const span = Math.max(1, iterations[iterations.length - 1] - first);
    let low = Math.min(0, ...known.slice(0, 1));
    let high = low;
    for (const value of known) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    if (high === low) high = low + 1;
    const x = (iteration) => left + ((iteration - first) / span) * (width - left - 6);
    const y = (value) => height - bottom - ((value - low) / (high - low)) * (height - bottom - 8);
    const chart = RB.svg("svg", {
      class: "chart",
      viewBox: "0 0 " + width + " " + height,
      role: "img",
      "aria-label": label,
    });
    for (const value of [low, high]) {
      chart.append(
        RB.svg("path", { class: "axis", d: "M" + left + " " + y(value) + "H" + (width - 6) }),
        RB.svg("text", { x: left - 5, y: y(value) + 4, "text-anchor": "end" }, RB.brief(value))
      );
    }
    chart.append(
      RB.svg("text", { x: left, y: height - 4 }, String(first)),
      RB.svg("text", { x: width - 6, y: height - 4, "text-anchor": "end" }, String(first + (span === 1 && iterations.length === 1 ? 0 : span)))
    );
    for (const [iteration] of alarms) {
      chart.append(RB.svg("path", { class: "alarm", d: "M" + x(iteration) + " 6V" + (height - bottom) }));
    }
    for (const [kind, values] of lines) {
      let path = "";
      let pen = "M";
      values.forEach(function (value, i) {
        if (value === null) {
          pen = kind === "dev" ? pen : "M";
          return;
        }
        path += pen + x(iterations[i]).toFixed(1) + " " + y(value).toFixed(1);
        pen = "L";
      });
      chart.append(RB.svg("path", { class: "curve " + kind, d: path || "M0 0" }));
      const dots = values.filter((value) => value !== null).length;
      if (dots < 40) {
        values.forEach(function (value, i) {
          if (value !== null) {
            chart.append(RB.svg("circle", { class: "dot " + kind, r: 2, cx: x(iterations[i]), cy: y(value) }));
          }
        });
      }
    }
    const now = RB.svg("path", { class: "now", d: "" });
    chart.append(now);
    return { chart: chart, mark: (iteration) => now.setAttribute("d", "M" + x(iteration) + " 6V" + (height - bottom)) };
  };
})();
