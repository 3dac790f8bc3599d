"use strict";
(() => {
  const SPARE = 12; // number of rows drawn above and below the visible ones, so that scrolling shows no gaps
  const WIDTHS = { name: 15, clip: 13.5, findings: 14, codec: 5, size: 7, status: 4.5, number: 5, text: 6 }; // in rem
  const WAIT = 120; // time in ms between the last key press and the filtering

  const data = JSON.parse(document.getElementById("rows").textContent);
  const box = document.getElementById("table");
  const filter = document.getElementById("filter");
  const matches = document.getElementById("matches");
  const columns = data.columns.map(decode);
  const byKey = new Map(columns.map((column) => [column.key, column]));
  for (const column of columns) {
    if (column.ratio) {
      const [above, below] = column.ratio.map((key) => byKey.get(key).values);
      column.values = above.map((value, row) => (value && below[row] ? Number((value / below[row]).toPrecision(5)) : null));
    }
  }
  const texts = columns.filter((column) => column.form === "text");
  const haystacks = Array.from({ length: data.rows }, (_, row) =>
    texts.map((column) => column.values[row] ?? "").join("\n").toLowerCase());
  const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
  const broken = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 5 });
  const alphabet = new Intl.Collator("en", { numeric: true });

  let order = haystacks.map((_, row) => row);
  let sorted = { column: null, descending: false };
  let height = 30;

  function decode(column) {
    let values = column.values;
    if (column.words) values = column.numbers.map((number) => (number < 0 ? null : column.words[number]));
    if (column.rest) {
      let before = "";
      values = column.rest.map((rest, row) => (before = before.slice(0, column.same[row]) + rest) || null);
    }
    return { ...column, values };
  }

  function made(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  let least = 0;
  // The head has all columns. The body contains only elements for rows that are visible or nearly visible.
  const heads = columns.map((column) => {
    const button = made("button", { type: "button" }, column.title);
    const arrow = made("span", { "aria-hidden": "true" });
    button.append(arrow);
    const head = made("th", column.form === "number" ? { scope: "col", class: "number" } : { scope: "col" }, button);
    const width = WIDTHS[column.key] ?? WIDTHS[column.form];
    if (column.key !== "name") head.style.width = `${width}rem`; // names take the remaining width
    if (column.help) button.title = column.help;
    least += width;
    button.addEventListener("click", () => {
      sorted = { column, descending: sorted.column === column && !sorted.descending };
      update();
    });
    return { head, arrow, column };
  });
  const above = made("tr", { class: "space", "aria-hidden": "true" }, made("td", { colspan: columns.length }));
  const below = made("tr", { class: "space", "aria-hidden": "true" }, made("td", { colspan: columns.length }));
  const body = made("tbody", {}, above, below);
  const table = made("table", { "aria-colcount": columns.length, "aria-labelledby": "all-title" },
    made("thead", {}, made("tr", { "aria-rowindex": 1 }, ...heads.map(({ head }) => head))), body);
  const pool = [];
  table.style.minWidth = `${least}rem`;

  function shownValue(column, row) {
    const value = column.values[row];
    if (value === null || value === undefined) return "–";
    return column.form === "number" ? (Number.isInteger(value) ? whole : broken).format(value) : value;
  }

  function newRow() {
    const cells = columns.map((column) => {
      const text = made("bdi");
      const cell = made("td", column.form === "number" ? { class: "number" } : {}, text);
      return { cell, text };
    });
    return { tr: made("tr", {}, ...cells.map(({ cell }) => cell)), cells };
  }

  function draw() {
    const first = Math.max(0, Math.floor(box.scrollTop / height) - SPARE);
    const last = Math.min(order.length, Math.ceil((box.scrollTop + box.clientHeight) / height) + SPARE);
    const count = Math.max(0, last - first);
    while (pool.length < count) {
      const row = newRow();
      pool.push(row);
      body.insertBefore(row.tr, below);
    }
    while (pool.length > count) pool.pop().tr.remove();
    pool.forEach(({ tr, cells }, place) => {
      const row = order[first + place];
      tr.setAttribute("aria-rowindex", first + place + 2);
      cells.forEach(({ cell, text }, number) => {
        const value = shownValue(columns[number], row);
        if (text.textContent !== value) {
          text.textContent = value;
          if (columns[number].form === "text") cell.title = value;
        }
      });
    });
    above.firstChild.style.height = `${first * height}px`;
    below.firstChild.style.height = `${(order.length - first - count) * height}px`;
    above.hidden = !first;
    below.hidden = first + count >= order.length;
  }

  function compare(column, descending) {
    const sign = descending ? -1 : 1;
    const { values, form } = column;
    return (a, b) => {
      const one = values[a], other = values[b];
      if (one === null || other === null) return (one === null) - (other === null) || a - b; // null is last in both directions
      return sign * (form === "number" ? one - other : alphabet.compare(one, other)) || a - b;
    };
  }

  const TESTS = {
    "<": (a, b) => a < b, ">": (a, b) => a > b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b, "=": (a, b) => a === b,
  };

  function condition(word) {
    const parts = /^([a-z]+)(<=|>=|=|<|>)(.+)$/.exec(word);
    const column = parts && byKey.get(parts[1]);
    if (!column) return (row) => haystacks[row].includes(word);
    const [, , sign, text] = parts;
    if (column.form === "text") return (row) => sign === "=" && (column.values[row] ?? "").toLowerCase() === text;
    const wanted = Number(text);
    return (row) => column.values[row] !== null && TESTS[sign](column.values[row], wanted);
  }

  function update() {
    const conditions = filter.value.toLowerCase().split(/\s+/).filter(Boolean).map(condition);
    order = [];
    for (let row = 0; row < data.rows; row++) if (conditions.every((test) => test(row))) order.push(row);
    if (sorted.column) order.sort(compare(sorted.column, sorted.descending));
    const direction = sorted.descending ? "descending" : "ascending";
    for (const { head, arrow, column } of heads) {
      const here = column === sorted.column;
      if (here) head.setAttribute("aria-sort", direction);
      else head.removeAttribute("aria-sort");
      arrow.textContent = here ? (sorted.descending ? " ↓" : " ↑") : "";
    }
    table.setAttribute("aria-rowcount", order.length + 1);
    const by = sorted.column ? `, by ${sorted.column.title.toLowerCase()}, ${direction}` : "";
    matches.textContent = `${whole.format(order.length)} of ${whole.format(data.rows)} match${by}`;
    box.scrollTop = 0;
    draw();
  }

  let timer = 0, frame = 0;
  filter.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(update, WAIT);
  });
  box.addEventListener("scroll", () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      draw();
    });
  }, { passive: true });
  function measure() {
    draw();
    if (pool.length) height = pool[0].tr.getBoundingClientRect().height || height;
    draw();
  }
  // Boxes that scroll horizontally can be focused with the keyboard. Other boxes cannot.
  function reachable() {
    for (const part of document.querySelectorAll(".box:not(#table)")) {
      if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
      else part.removeAttribute("tabindex");
    }
  }
  window.addEventListener("resize", () => {
    measure();
    reachable();
  });
  document.addEventListener("toggle", reachable, true);

  box.append(table);
  document.getElementById("live").hidden = false;
  document.documentElement.classList.add("js");
  update();
  measure();
  reachable();

  // For printing, open the folded tables of the summary. The SQL queries stay folded.
  let folded = [];
  window.addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("#summary details:not([open])")];
    for (const details of folded) details.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const details of folded) details.open = false;
  });
})();
