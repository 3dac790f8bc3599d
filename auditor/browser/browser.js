"use strict";
(() => {
  const AHEAD = 24; // number of pictures that are fetched ahead of the shown one
  const AT_ONCE = 4; // maximum number of parallel requests for pictures
  const MOST_BITMAPS = 96; // maximum number of decoded pictures in memory
  const MARKS = { error: "✕", warning: "▲", note: "●" };
  const POLL = 700; // interval in ms at which the state of the audit is requested

  const at = (identity) => document.getElementById(identity);
  const number = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 16 });
  const broken = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 10 });
  const three = { minimumFractionDigits: 3, maximumFractionDigits: 3 };
  const time = new Intl.NumberFormat("en-US", three);
  const gap = new Intl.NumberFormat("en-US", { ...three, signDisplay: "always" });
  let subject = null;
  let wanted = { filters: [], finding: null, sql: null, sort: null, descending: false };
  let page = 0, pages = 1, total = 0, cards = [];
  let audit = { state: "running", findings: [] };
  let turn = 0; // number of the last request for the list. Answers to earlier requests are dropped
  let drawing = new AbortController();

  // Requests to the server ---------------------------------------------------------------------------------------

  async function ask(path, options = {}) {
    let answer;
    try {
      answer = await fetch(path, options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("The server does not answer. Is framedex inspect still running?");
    }
    if (!answer.ok) throw new Error(await answer.text());
    return answer;
  }
  const json = async (path, options) => (await ask(path, options)).json();
  const post = (path, body) =>
    json(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const query = (parts) => new URLSearchParams(parts).toString();

  function made(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) if (value !== null) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  function tell(box, error) {
    box.hidden = !error;
    box.textContent = error ? error.message : "";
  }

  function shown(value) {
    if (value === null || value === undefined) return "–";
    if (typeof value === "boolean") return value ? "yes" : "no";
    if (typeof value === "number") return (Number.isInteger(value) ? number : broken).format(value);
    return String(value);
  }

  const firstLine = (text) => text.split("\n", 1)[0];

  const NOT_FINITE = ["NaN", "inf", "-inf"]; // texts for numbers that JSON cannot represent
  const isNumber = (value) => typeof value === "number" || NOT_FINITE.includes(value);

  function table(columns, rows) {
    const right = columns.map((_, place) => rows.length > 0 && rows.every((row) => row[place] === null || isNumber(row[place])));
    const side = (place) => ({ class: right[place] ? "number" : null });
    return made("table", {},
      made("thead", {}, made("tr", {}, ...columns.map((name, place) => made("th", { scope: "col", ...side(place) }, name)))),
      made("tbody", {}, ...rows.map((row) => made("tr", {}, ...row.map((value, place) =>
        made("td", side(place), typeof value === "string" ? made("bdi", { class: value.includes("\n") ? "lines" : null }, value) : shown(value)))))));
  }

  // The list -------------------------------------------------------------------------------------------------------

  const things = (count) => {
    const [one, many] = subject.kind === "dataset" ? ["clip", "clips"] : ["medium", "media"];
    return `${number.format(count)} ${count === 1 ? one : many}`;
  };

  async function list() {
    const mine = ++turn;
    at("state").textContent = "…";
    tell(at("problem"), null);
    drawing.abort();
    drawing = new AbortController();
    const finding = audit.findings.find((one) => one.name === wanted.finding);
    let answer;
    try {
      answer = await post("items", { wanted: finding && !finding.names_items ? { ...wanted, finding: null } : wanted, page });
    } catch (error) {
      if (mine !== turn) return;
      cards = [];
      at("items").replaceChildren();
      at("state").textContent = "";
      setPager(0, 1);
      tell(at("problem"), error);
      return;
    }
    if (mine !== turn) return;
    ({ total } = answer);
    cards = answer.items;
    setPager(total, answer.each);
    const all = total === subject.total ? "" : ` of ${number.format(subject.total)}`;
    const note = finding && !finding.names_items ? " · what the check found names none of them" : "";
    at("state").textContent = total ? `${things(total)}${all}${note}` : `None${all} fits.`;
    at("items").replaceChildren(...cards.map(card));
  }

  function setPager(count, each) {
    pages = Math.max(1, Math.ceil(count / each));
    for (const box of document.querySelectorAll(".pager")) {
      box.hidden = pages === 1;
      box.querySelector(".page").value = page + 1;
      box.querySelector(".page").max = pages;
      box.querySelector(".pages").textContent = ` of ${number.format(pages)}`;
      box.querySelector(".previous").disabled = page === 0;
      box.querySelector(".next").disabled = page >= pages - 1;
    }
  }

  function goTo(place) {
    page = Math.min(pages - 1, Math.max(0, Math.floor(Number(place)) || 0));
    list();
  }

  function card(item, place) {
    const poster = made("div", { class: "poster" });
    const button = made("button", { type: "button", class: "card" }, poster, made("b", {}, made("bdi", {}, item.name)));
    for (const text of [item.source === item.name ? "" : item.source, item.text]) {
      if (text) button.append(made("span", { class: "soft" }, made("bdi", {}, text)));
    }
    for (const [name, value] of item.columns) button.append(made("span", { class: "mine" }, made("bdi", {}, `${name}: ${value}`)));
    button.addEventListener("click", () => open(place));
    if (item.error) poster.append(made("p", { class: "bad", title: item.error }, firstLine(item.error)));
    else watcher.observe(poster);
    posters.set(poster, item);
    return made("li", {}, button);
  }

  const posters = new WeakMap();
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        watcher.unobserve(entry.target);
        drawPoster(entry.target, posters.get(entry.target));
      }
    }
  }, { rootMargin: "200px" });

  async function drawPoster(poster, item) {
    poster.append(made("p", {}, "…"));
    try {
      const answer = await ask(`poster?${query({ key: item.key })}`, { signal: drawing.signal });
      const image = made("img", { alt: "" });
      const address = URL.createObjectURL(await answer.blob());
      image.addEventListener("load", () => URL.revokeObjectURL(address));
      image.src = address;
      poster.replaceChildren(image);
    } catch (error) {
      if (error.name !== "AbortError") {
        poster.replaceChildren(made("p", { class: "bad", title: error.message }, firstLine(error.message)));
      }
    }
  }

  // The selection --------------------------------------------------------------------------------------------------

  function change(changes) {
    wanted = { ...wanted, ...changes };
    page = 0;
    const active = [];
    wanted.filters.forEach((filter, place) => active.push([
      `${filter.column} ${filter.operation} ${filter.value}`.trim(),
      () => change({ filters: wanted.filters.filter((_, other) => other !== place) }),
    ]));
    if (wanted.finding) active.push([`finding: ${wanted.finding}`, () => change({ finding: null })]);
    if (wanted.sql) active.push(["the query's rows", () => change({ sql: null })]);
    at("active").replaceChildren(...active.map(([text, remove]) => {
      const button = made("button", { type: "button", "aria-label": `Remove: ${text}` }, `${text} ✕`);
      button.addEventListener("click", remove);
      return made("li", {}, button);
    }));
    drawFindings();
    if ("finding" in changes) drawFound(0);
    list();
  }

  function drawFindings() {
    const { state, message, findings } = audit;
    const counts = Object.entries(MARKS).flatMap(([severity, mark]) => {
      const count = findings.filter((finding) => finding.severity === severity).length;
      return count ? ["· ", made("span", { class: `mark-${severity}` }, `${mark} ${number.format(count)} ${severity}${count === 1 ? "" : "s"}`), " "] : [];
    });
    at("findings-state").replaceChildren(...(state === "running" ? ["· checking …"]
      : state === "failed" ? [`· failed: ${message}`] : [...counts, `· ${number.format(audit.passed)} checks found nothing`]));
    at("findings").replaceChildren(...findings.map((finding) => {
      const mine = wanted.finding === finding.name;
      const button = made("button", { type: "button", "aria-pressed": String(mine), title: finding.means },
        made("span", { class: `mark-${finding.severity}`, "aria-hidden": "true" }, MARKS[finding.severity]),
        made("span", {}, made("span", { class: "unseen" }, `${finding.severity}: `), finding.title),
        made("span", { class: "count" }, number.format(finding.count)));
      button.addEventListener("click", () => change({ finding: mine ? null : finding.name }));
      return made("li", {}, button);
    }));
  }

  async function drawFound(place) {
    const box = at("found");
    const finding = audit.findings.find((one) => one.name === wanted.finding);
    box.hidden = !finding;
    if (!finding) return;
    const rows = made("div", { class: "box", tabindex: "0", role: "region", "aria-label": "What the check found (table)" }, "…");
    box.replaceChildren(
      made("b", {}, `${finding.title}: ${number.format(finding.count)}`), made("p", {}, finding.means),
      made("p", {}, made("b", {}, "Remedy: "), finding.remedy), rows);
    try {
      const answer = await post("rows", { wanted: { finding: finding.name }, page: place });
      rows.replaceChildren(table(answer.columns, answer.rows), answer.cut ?? "");
      const last = Math.ceil(finding.count / answer.each);
      if (last > 1) {
        const back = made("button", { type: "button" }, "‹"), on = made("button", { type: "button" }, "›");
        back.disabled = place === 0;
        on.disabled = place >= last - 1;
        back.addEventListener("click", () => drawFound(place - 1));
        on.addEventListener("click", () => drawFound(place + 1));
        box.append(made("div", { class: "row" }, back, `rows, page ${place + 1} of ${number.format(last)}`, on));
      }
    } catch (error) {
      rows.textContent = error.message;
    }
  }

  async function watchAudit() {
    try {
      audit = await json("findings");
    } catch (error) {
      audit = { state: "failed", message: error.message, findings: [] };
    }
    drawFindings();
    if (audit.state === "running") setTimeout(watchAudit, POLL);
  }

  async function offerValues() {
    const bare = "bare" in at("operation").selectedOptions[0].dataset;
    at("value").hidden = bare;
    at("values").replaceChildren();
    if (bare) return;
    try {
      const answer = await json(`values?${query({ column: at("column").value })}`);
      at("values").replaceChildren(...answer.values.filter((one) => one.value !== null)
        .map((one) => made("option", { value: one.value }, `${one.text} (${number.format(one.count)})`)));
    } catch { /* the filter works without suggestions */ }
  }

  let answered = null; // the query whose result is shown
  async function run() {
    const sql = at("sql").value;
    at("run").disabled = true;
    at("stop").disabled = false;
    at("show-answer").hidden = true;
    at("answer").hidden = true;
    at("sql-state").textContent = "running …";
    const begin = performance.now();
    try {
      const answer = await post("sql", { sql });
      answered = sql;
      at("answer").replaceChildren(table(answer.columns, answer.rows));
      at("answer").hidden = false;
      const more = answer.more ? "the first " : "";
      const count = answer.rows.length;
      at("sql-state").textContent = `${more}${number.format(count)} ${count === 1 ? "row" : "rows"} · ${number.format(Math.round(performance.now() - begin))} ms${answer.cut ? ` · ${answer.cut}` : ""}`;
      at("show-answer").hidden = !answer.names_items || !count;
      tell(at("problem"), null);
    } catch (error) {
      at("sql-state").textContent = "";
      tell(at("problem"), error);
    }
    at("run").disabled = false;
    at("stop").disabled = true;
  }

  // The player -----------------------------------------------------------------------------------------------------

  const player = at("player");
  const canvas = at("canvas");
  const context = canvas.getContext("2d");
  let clip = null; // the clip that the player shows
  let place = 0; // index of the shown frame
  let playing = false, began = 0, clock = 0; // `clock` is the playback position in seconds
  let sound = null;

  async function open(index, first = null) {
    close();
    const item = cards[index];
    const mine = { index, key: item.key, first, frames: [], bitmaps: new Map(), loading: new Set(), stop: new AbortController() };
    clip = mine;
    at("name").textContent = item.name;
    at("source").textContent = item.source === item.name ? "" : item.source;
    at("facts").replaceChildren();
    at("stage").hidden = true;
    at("part").hidden = true;
    at("previous-item").disabled = page === 0 && index === 0;
    at("next-item").disabled = page >= pages - 1 && index >= cards.length - 1;
    tell(at("player-problem"), null);
    at("now").textContent = "…";
    if (!player.open) player.showModal();
    let facts;
    try {
      facts = await json(`item?${address(mine)}`, { signal: mine.stop.signal });
    } catch (error) {
      if (clip === mine && error.name !== "AbortError") tell(at("player-problem"), error);
      return;
    }
    if (clip !== mine) return;
    Object.assign(mine, facts);
    const pairs = [...facts.columns, ...(facts.facts ?? [])];
    if (facts.scaled) pairs.push(["pictures", `scaled to ${facts.width} × ${facts.height} from ${facts.scaled}`]);
    at("facts").replaceChildren(...pairs.flatMap(([name, value]) =>
      [made("dt", {}, made("bdi", {}, name)), made("dd", {}, made("bdi", {}, value))]));
    at("part").hidden = !subject.spans || Boolean(item.error);
    at("first").max = Math.max(0, (facts.count ?? 1) - 1);
    if (facts.error) {
      tell(at("player-problem"), new Error(facts.error));
      return;
    }
    at("stage").hidden = false;
    canvas.width = facts.width;
    canvas.height = facts.height;
    canvas.style.setProperty("--ratio", facts.width / facts.height);
    at("seek").max = mine.frames.length - 1;
    at("strip").replaceChildren(...mine.frames.map((frame, number) => {
      const button = made("button", { type: "button", class: frame.padding ? "padding" : null }, frame.frame === null ? "pad" : `#${frame.frame}`);
      button.addEventListener("click", () => jump(number));
      return made("li", {}, button);
    }));
    const hears = mine.sound !== null && mine.ascending;
    at("hear-box").hidden = !hears;
    sound = hears ? new Audio() : null;
    if (sound) fetchSound(mine, sound);
    jump(0);
  }

  const address = (one) => query(one.first === null ? { key: one.key } : { key: one.key, first: one.first });

  // Fetch the audio as a whole, since an audio element can seek only in data that it has received.
  async function fetchSound(one, audio) {
    try {
      const answer = await ask(`sound?${address(one)}`, { signal: one.stop.signal });
      one.heard = URL.createObjectURL(await answer.blob());
      audio.src = one.heard;
    } catch (error) {
      if (clip === one && error.name !== "AbortError") tell(at("player-problem"), error);
    }
  }

  async function load(one, number) {
    if (one.bitmaps.has(number) || one.loading.has(number)) return;
    one.loading.add(number);
    try {
      const answer = await ask(`picture?${address(one)}&place=${number}`, { signal: one.stop.signal });
      const bitmap = await createImageBitmap(await answer.blob(), { colorSpaceConversion: "none", premultiplyAlpha: "none" });
      one.bitmaps.set(number, bitmap);
      for (const other of one.bitmaps.keys()) {
        if (one.bitmaps.size <= MOST_BITMAPS) break;
        if (other < place || other > place + MOST_BITMAPS) {
          one.bitmaps.get(other).close();
          one.bitmaps.delete(other);
        }
      }
      if (clip === one && number === place) draw();
    } catch (error) {
      if (clip === one && error.name !== "AbortError") tell(at("player-problem"), error);
    } finally {
      one.loading.delete(number);
      if (clip === one) fetchAhead(one);
    }
  }

  function fetchAhead(one) {
    for (let step = 0; step <= Math.min(AHEAD, one.frames.length - 1) && one.loading.size < AT_ONCE; step++) {
      load(one, (place + step) % one.frames.length);
    }
  }

  function draw() {
    const frame = clip.frames[place];
    const bitmap = clip.bitmaps.get(place);
    const constant = frame.frame === null;
    if (constant) {
      context.fillStyle = "black";
      context.fillRect(0, 0, canvas.width, canvas.height);
    } else if (bitmap) context.drawImage(bitmap, 0, 0);
    canvas.setAttribute("aria-label", constant ? "padding" : `frame ${frame.frame}`);
    canvas.dataset.place = constant || bitmap ? place : "";
    at("screen").classList.toggle("padding", frame.padding);
    at("over").hidden = !frame.padding;
    at("over").textContent = constant ? "padding" : "padding: a frame repeated";
    const parts = [`frame ${number.format(place + 1)} of ${number.format(clip.frames.length)}`, constant ? "padding" : `#${frame.frame}`];
    if (frame.seconds !== null) parts.push(`${time.format(frame.seconds)} s`);
    if (frame.gap !== null) parts.push(`${gap.format(frame.gap)} s since the frame before`);
    if (!constant && !bitmap) parts.push("loading …");
    at("now").textContent = parts.join(" · ");
    at("seek").value = place;
    [...at("strip").children].forEach((entry, number) => {
      if (number === place) entry.firstChild.setAttribute("aria-current", "true");
      else entry.firstChild.removeAttribute("aria-current");
    });
  }

  function show(number) {
    place = number;
    draw();
    if (clip.frames[place].frame !== null) load(clip, place);
    fetchAhead(clip);
  }

  function jump(number) {
    if (!clip?.frames.length) return;
    pause();
    clock = clip.begins[number];
    show(number);
  }

  const speed = () => Number(at("speed").value);
  const hears = () => sound !== null && at("hear").checked;

  function play() {
    if (!clip?.frames.length) return;
    if (place === clip.frames.length - 1) clock = 0;
    playing = true;
    at("play").textContent = "Pause";
    restart();
    requestAnimationFrame(tick);
  }

  function restart() {
    began = performance.now() - (1000 * clock) / speed();
    if (!sound) return;
    sound.pause();
    if (hears() && playing) {
      sound.playbackRate = speed();
      sound.currentTime = Math.min(clock, clip.sound);
      sound.play().catch(() => { /* the web browser does not support this speed, or does not allow audio. Pictures continue to play */ });
    }
  }

  function pause() {
    playing = false;
    sound?.pause();
    at("play").textContent = "Play";
  }

  function tick() {
    if (!playing || !clip?.frames.length) return;
    const heard = hears() && !sound.paused && !sound.ended;
    clock = heard ? sound.currentTime : ((performance.now() - began) / 1000) * speed();
    if (clock >= clip.duration) {
      if (!at("loop").checked) {
        clock = clip.begins[clip.begins.length - 1];
        show(clip.frames.length - 1);
        pause();
        return;
      }
      clock = 0;
      restart();
    }
    let next = place < clip.begins.length && clip.begins[place] <= clock ? place : 0;
    while (next + 1 < clip.begins.length && clip.begins[next + 1] <= clock) next++;
    const ready = clip.bitmaps.has(next) || clip.frames[next].frame === null;
    if (ready) {
      if (next !== place) show(next);
    } else { // the clock waits until the picture has arrived, so that no frame is skipped
      clock = clip.begins[place];
      restart();
      const following = (place + 1) % clip.frames.length;
      load(clip, next);
      if (clip.bitmaps.has(following)) show(following);
    }
    requestAnimationFrame(tick);
  }

  function close() {
    pause();
    sound = null;
    if (clip) {
      clip.stop.abort();
      if (clip.heard) URL.revokeObjectURL(clip.heard);
      for (const bitmap of clip.bitmaps.values()) bitmap.close();
    }
    clip = null;
    place = 0;
    clock = 0;
  }

  async function neighbour(step) {
    if (!clip) return;
    let index = clip.index + step;
    if (index < 0 || index >= cards.length) {
      if ((step < 0 && page === 0) || (step > 0 && page >= pages - 1)) return;
      page += step;
      await list();
      index = step < 0 ? cards.length - 1 : 0;
    }
    if (cards[index]) open(index);
  }

  const KEYS = {
    " ": () => (playing ? pause() : play()),
    ArrowLeft: () => jump(Math.max(0, place - 1)),
    ArrowRight: () => jump(Math.min(clip.frames.length - 1, place + 1)),
    Home: () => jump(0),
    End: () => jump(clip.frames.length - 1),
  };

  function bind() {
    at("filter").addEventListener("submit", (event) => {
      event.preventDefault();
      const value = at("value").hidden ? "" : at("value").value;
      change({ filters: [...wanted.filters, { column: at("column").value, operation: at("operation").value, value }] });
      at("value").value = "";
    });
    at("column").addEventListener("change", offerValues);
    at("operation").addEventListener("change", offerValues);
    at("value").addEventListener("focus", () => { if (!at("values").childElementCount) offerValues(); });
    at("sort").addEventListener("change", () => change({ sort: at("sort").value || null }));
    at("descending").addEventListener("change", () => change({ descending: at("descending").checked }));
    at("run").addEventListener("click", run);
    at("stop").addEventListener("click", () => post("stop", {}).catch(() => {}));
    at("sql").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
    });
    at("show-answer").addEventListener("click", () => {
      change({ sql: answered });
      at("list").scrollIntoView();
    });
    for (const box of document.querySelectorAll(".pager")) {
      box.querySelector(".previous").addEventListener("click", () => goTo(page - 1));
      box.querySelector(".next").addEventListener("click", () => goTo(page + 1));
      box.querySelector(".page").addEventListener("change", (event) => goTo(event.target.value - 1));
    }
    at("play").addEventListener("click", KEYS[" "]);
    at("first-frame").addEventListener("click", KEYS.Home);
    at("step-back").addEventListener("click", KEYS.ArrowLeft);
    at("step-on").addEventListener("click", () => clip && KEYS.ArrowRight());
    at("seek").addEventListener("input", () => jump(Number(at("seek").value)));
    at("speed").addEventListener("change", restart);
    at("hear").addEventListener("change", restart);
    at("fit").addEventListener("change", () => at("screen").classList.toggle("fit", at("fit").checked));
    at("close").addEventListener("click", () => player.close());
    player.addEventListener("close", close);
    at("previous-item").addEventListener("click", () => neighbour(-1));
    at("next-item").addEventListener("click", () => neighbour(1));
    at("part").addEventListener("submit", (event) => {
      event.preventDefault();
      open(clip.index, Number(at("first").value));
    });
    at("whole").addEventListener("click", () => open(clip.index));
    player.addEventListener("keydown", (event) => {
      const own = event.target.closest("input:not([type=checkbox]), select, textarea, form");
      const pressed = event.target.closest("button") && event.key === " ";
      if (own || pressed || !clip?.frames.length || !(event.key in KEYS)) return;
      event.preventDefault();
      KEYS[event.key]();
    });
  }

  async function start() {
    at("screen").classList.add("fit");
    at("speed").value = "1";
    try {
      subject = await json("subject");
    } catch (error) {
      tell(at("problem"), error);
      return;
    }
    for (const { name } of subject.columns) {
      at("column").append(made("option", { value: name }, name));
      at("sort").append(made("option", { value: name }, name));
    }
    at("column").value = subject.first_column;
    const rows = subject.kind === "dataset" ? "clip or clip_id" : "media_id";
    at("sql-help").textContent = `Enter one SELECT statement in DuckDB's SQL. docs/audit.md lists the views. Rows with ${rows} can be shown. Ctrl-Enter runs the query.`;
    at("sql").value = subject.kind === "dataset"
      ? "SELECT clip_id, uri, padded_frames, bytes_read FROM clips ORDER BY bytes_read DESC LIMIT 20"
      : "SELECT media_id, uri, codec, duration_seconds FROM videos ORDER BY duration_seconds DESC LIMIT 20";
    bind();
    list();
    watchAudit();
  }

  start();
})();
