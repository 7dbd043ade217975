// The page of the service. Everything that comes from the learner is set as text, never as markup.
"use strict";

const $ = (id) => document.getElementById(id);
const TOP = 5;
const page = { token: "", state: "", generation: 0, current: 0, fixed: false, labels: [], generations: [], asked: "", last: null, taught: new Map(), correcting: Promise.resolve(), watched: new Map() };

// ---- requests ---------------------------------------------------------------------------------------

class Problem extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

async function request(method, path, body, type) {
  const headers = {};
  if (page.token) headers.authorization = `Bearer ${page.token}`;
  if (body !== undefined) headers["content-type"] = type || "application/json";
  const url = new URL(path, location.href);
  if (page.state) url.searchParams.set("state", page.state);
  let reply;
  try {
    reply = await fetch(url, { method, headers, body: body === undefined || type ? body : JSON.stringify(body) });
  } catch {
    throw new Problem(0, "the service does not answer");
  }
  const found = await reply.json().catch(() => ({}));
  if (reply.status === 401 && await tokenGiven()) return request(method, path, body, type);
  if (!reply.ok) throw new Problem(reply.status, found.error || `the service answered ${reply.status}`);
  return found;
}

function complain(error) {
  const toast = $("toast");
  toast.textContent = error.message;
  toast.hidden = false;
  clearTimeout(complain.timer);
  complain.timer = setTimeout(() => { toast.hidden = true; }, 8000);
}

function act(form, action) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = event.submitter || form.querySelector("[type=submit]");
    button.disabled = true;
    try { await action(); } catch (error) { complain(error); } finally { button.disabled = false; }
  });
}

function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const percent = (value, digits = 1) => `${(100 * value).toFixed(digits)} %`;
const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
const quoted = (label) => `“${label}”`;

// ---- token ------------------------------------------------------------------------------------------

function askForToken() {
  const dialog = $("token-dialog");
  $("token").value = page.token;
  if (dialog.open) return;
  dialog.returnValue = "";
  dialog.showModal();
}

function tokenGiven() {
  askForToken();
  const dialog = $("token-dialog");
  return new Promise((done) => { dialog.addEventListener("close", () => done(dialog.returnValue === "use"), { once: true }); });
}

function startToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname + location.search);
  }
  page.token = sessionStorage.getItem("token") || "";
  $("token-open").addEventListener("click", askForToken);
  $("token-form").addEventListener("submit", () => {
    page.token = $("token").value.trim();
    sessionStorage.setItem("token", page.token);
  });
  for (const button of document.querySelectorAll("[data-close]"))
    button.addEventListener("click", () => button.closest("dialog").close());
}

// ---- a sentence -------------------------------------------------------------------------------------

async function predict(text) {
  const body = { texts: [text], top: TOP };
  try {
    return await request("POST", "v1/predict", { ...body, reject: 0.95, cover: 0.95 });
  } catch (error) {
    if (error.status !== 422) throw error;
    return request("POST", "v1/predict", body); // this learner has no thresholds
  }
}

const isShown = (text) => page.asked === text;

async function ask(text) {
  page.asked = text;
  tell(text, "", false);
  $("undo").hidden = true;
  try {
    const found = await predict(text);
    if (isShown(text)) showAnswer(text, found);
  } catch (error) {
    page.asked = page.last ? page.last.text : "";
    throw error;
  }
}

function showAnswer(text, found) {
  const [answer] = found.answers;
  page.last = { text, answer };
  $("answer").hidden = false;
  $("verdict").className = answer.label === null ? "unknown" : "";
  $("label").textContent = answer.label === null ? "unknown" : answer.label;
  $("probability").textContent = answer.label === null ? "" : percent(answer.probability);
  const [first, second] = answer.top;
  const close = answer.label !== null && second && first.probability - second.probability < 0.2;
  let why = "";
  if (answer.label === null) why = `No label, for ${answer.why}. The nearest one is ${quoted(first.label)}.`;
  else if (close)
    why = `A close call: it could be confused with ${quoted(second.label)} (${percent(second.probability)}).`;
  $("why").textContent = why;
  const others = (answer.set || []).filter((label) => label !== first.label && !(close && label === second.label)); // named above
  $("among").textContent = others.length ? `Possible too: ${others.map(quoted).join(", ")}.` : "";
  $("bars").replaceChildren(...answer.top.map(bar));
}

function bar({ label, probability }, place) {
  const fill = make("span", { class: "fill" });
  const best = place === 0 && page.last.answer.label !== null;
  const button = make("button", { type: "button", disabled: page.fixed, title: `Teach this sentence as ${label}`, onclick: () => correct(label) },
    make("span", { class: "name" }, label),
    make("span", { class: "track" }, fill),
    make("span", { class: "value" }, percent(probability)),
    make("span", { class: "pick", hidden: page.fixed }, best ? "✓ right" : "it is this"));
  requestAnimationFrame(() => { fill.style.width = `${100 * probability}%`; });
  return make("li", { class: best ? "best" : "" }, button);
}

// What was taught for a sentence is remembered, so that a second click changes it instead of adding a label.
// Corrections follow one another. Another sentence may be shown when one is done.

function inTurn(action) {
  page.correcting = page.correcting.then(action).catch(complain);
}

function correct(label) {
  const { text } = page.last, wanted = label.trim();
  if (wanted) inTurn(() => taughtAs(text, wanted));
}

async function taughtAs(text, label) {
  const { label: before, moved } = page.taught.get(text) || {};
  if (before === label) { tell(text, `This sentence is taught as ${quoted(label)} already.`, false); return; }
  const rows = [{ text, label: before || label }];
  const body = before ? { rows, to: label } : { rows, name: "correction" };
  if (moved) body.again = true; // it was, and was taken out or changed here
  const report = await done(text, before ? "v1/correct" : "v1/learn", body, before
    ? `Changing this from ${quoted(before)} to ${quoted(label)} …`
    : `Learning that this is ${quoted(label)} …`);
  if (!report) return;
  const old = report.result.already || report.result.done_before;
  if (!old) page.taught.set(text, { label, moved: Boolean(moved || before) });
  const found = await shownAgain(text);
  if (!found) return;
  const now = found.answers[0].label;
  const learnt = old ? "That was learnt before." : `${before ? "Changed" : "Learnt"} in generation ${found.generation}.`;
  tell(text, now === label
    ? `${learnt} The answer is ${quoted(label)}.`
    : `${learnt} The answer is still ${now === null ? "unknown" : quoted(now)}: one sentence weighs little. Teach a few more like it.`, now !== label);
  $("undo").hidden = !page.taught.has(text);
  $("undo").onclick = () => inTurn(() => takeOut(text));
}

async function takeOut(text) {
  const { label, moved } = page.taught.get(text) || {};
  if (!label) return;
  const body = { rows: [{ text, label }] };
  if (moved) body.again = true;
  const report = await done(text, "v1/correct", body, "Taking the correction out again …");
  if (!report) return;
  page.taught.set(text, { label: "", moved: true });
  if (!await shownAgain(text)) return;
  tell(text, report.result.exact && !report.result.note
    ? "The correction is taken out, as if it had never been learnt."
    : `The correction is taken out; ${report.result.note}.`, false);
}

async function done(text, path, body, said) {
  if (isShown(text)) $("undo").hidden = true;
  tell(text, said, false);
  try {
    const job = await request("POST", path, body);
    const report = await new Promise((ended) => { watch(job, ended); });
    if (report.status === "done") return report;
    tell(text, report.error, true);
  } catch (error) {
    tell(text, "", false);
    complain(error);
  }
  return null;
}

async function shownAgain(text) {
  if (!isShown(text)) return null;
  const found = await predict(text);
  if (!isShown(text)) return null;
  showAnswer(text, found);
  return found;
}

function tell(text, said, still) {
  if (!isShown(text)) return;
  $("corrected").textContent = said;
  $("corrected").className = still ? "still" : "";
}

function forgetTaught() { // another generation answers, or labels have other names
  page.taught.clear();
  $("undo").hidden = true;
}

async function generationIs(number) {
  for (let tries = 0; tries < 100; tries += 1) {
    const found = await request("GET", "v1/labels");
    if (found.generation >= number) break;
    await new Promise((done) => { setTimeout(done, 150); });
  }
  await refresh();
}

// ---- teaching ---------------------------------------------------------------------------------------

const lines = () => $("teach-lines").value.split("\n").map((line) => line.trim()).filter(Boolean);

async function teach() {
  const label = $("teach-label").value.trim();
  const rows = lines().map((text) => ({ text, label }));
  if (!label || !rows.length) throw new Problem(0, "give a label and at least one sentence");
  watch(await request("POST", "v1/learn", { rows, name: label.slice(0, 100) }), (report) => {
    if (report.status === "done") { $("teach-lines").value = ""; $("teach-label").value = ""; counted(); }
  });
}

const TYPES = { csv: "text/csv", tsv: "text/tab-separated-values", jsonl: "application/jsonl" };

function typeOf(file) {
  const type = TYPES[file.name.split(".").pop().toLowerCase()];
  if (!type) throw new Problem(0, `${file.name}: use a CSV, TSV or JSONL file`);
  return type;
}

async function teachFile(file) {
  try {
    watch(await request("POST", "v1/learn", file, typeOf(file)));
  } catch (error) { complain(error); }
  $("teach-file").value = "";
}

function counted() {
  const number = lines().length;
  $("teach-count").textContent = number ? count(number, "sentence") : "no sentences yet";
}

function startTeaching() {
  act($("teach-form"), teach);
  $("teach-lines").addEventListener("input", counted);
  $("teach-file").addEventListener("change", (event) => event.target.files[0] && teachFile(event.target.files[0]));
  for (const [zone, take] of [[$("drop"), teachFile], [$("compare-form").querySelector(".drop"), null]]) {
    zone.addEventListener("dragover", (event) => { event.preventDefault(); zone.classList.add("over"); });
    zone.addEventListener("dragleave", () => zone.classList.remove("over"));
    zone.addEventListener("drop", (event) => {
      event.preventDefault();
      zone.classList.remove("over");
      if (!event.dataTransfer.files.length) return;
      if (take) take(event.dataTransfer.files[0]);
      else $("compare-file").files = event.dataTransfer.files;
    });
  }
}

// ---- labels -----------------------------------------------------------------------------------------

function showLabels() {
  const wanted = $("filter").value.trim().toLowerCase();
  const rows = page.labels.filter(({ label }) => label.toLowerCase().includes(wanted));
  $("filter").hidden = page.labels.length < 12;
  $("labels-count").textContent = page.labels.length || "";
  $("label-rows").replaceChildren(...rows.map(({ label, sentences }) => make("tr", {},
    make("td", { class: "name" }, label),
    make("td", { class: "number" }, sentences === null ? "–" : String(sentences)),
    make("td", { class: "actions", hidden: page.fixed },
      make("button", { type: "button", "aria-label": `Rename ${label}`, onclick: () => change("rename", label) }, "rename"),
      make("button", { type: "button", "aria-label": `Merge ${label} into another label`, onclick: () => change("merge", label) }, "merge"),
      make("button", { type: "button", class: "warn", "aria-label": `Forget ${label}`, onclick: () => change("forget", label) }, "forget")))));
  $("known").replaceChildren(...page.labels.map(({ label }) => make("option", { value: label })));
  $("empty").hidden = page.labels.length > 0;
}

const CHANGES = {
  rename: { title: "Rename", text: "Its sentences get the new name. Nothing is learnt again.", field: "New name", verb: "Rename" },
  merge: { title: "Merge", text: "Its sentences count for the other label from now on, and this name is gone.", field: "Into", verb: "Merge" },
  forget: { title: "Forget", text: "The label is not an answer any more.", field: "", verb: "Forget" },
};

function change(kind, label) {
  const { title, text, field, verb } = CHANGES[kind];
  const older = page.generations.filter((one) => !one.current && one.labels.includes(label)).map((one) => one.generation);
  $("change-title").textContent = `${title} ${quoted(label)}`;
  $("change-text").textContent = text;
  $("change-field").hidden = !field;
  $("change-name-label").textContent = field;
  $("change-name").value = kind === "rename" ? label : "";
  $("change-name").setAttribute("list", kind === "merge" ? "known" : "");
  $("change-purge-label").hidden = kind !== "forget";
  $("change-purge").checked = false;
  const remains = () => {
    if (kind !== "forget") return "Older generations keep the old names; you can go back to them.";
    if ($("change-purge").checked) return "What remains: copies of this directory and backups, if you have any. The job says what else carries traces.";
    const know = older.length ? `generation${older.length > 1 ? "s" : ""} ${older.join(", ")} and the present one` : "the present generation";
    return `What remains: ${know} still know${older.length ? "" : "s"} the label until ${older.length ? "they are" : "it is"} replaced by newer ones. The job says what else carries traces.`;
  };
  $("change-remains").textContent = remains();
  $("change-purge").onchange = () => { $("change-remains").textContent = remains(); };
  $("change-do").textContent = verb;
  $("change-do").className = kind === "forget" ? "main warn" : "main";
  $("change-form").onsubmit = async () => {
    const name = $("change-name").value.trim();
    const bodies = {
      rename: { old: label, new: name },
      merge: { labels: [label, name], into: name },
      forget: { label, purge: $("change-purge").checked },
    };
    if (field && !name) return;
    try { watch(await request("POST", `v1/labels/${kind}`, bodies[kind]), forgetTaught); } catch (error) { complain(error); }
  };
  $("change-dialog").showModal();
}

// ---- generations ------------------------------------------------------------------------------------

const parentOf = (one) => one.parent || one.generation - 1;

function showGenerations() {
  const known = new Map(page.generations.map((one) => [one.generation, one]));
  const newest = [...page.generations].reverse();
  $("generation-rows").replaceChildren(...newest.map((one) => {
    const before = known.get(parentOf(one));
    const added = before ? one.labels.filter((label) => !before.labels.includes(label)) : [];
    const gone = before ? before.labels.filter((label) => !one.labels.includes(label)) : [];
    const few = (labels, sign) => labels.length ? `, ${sign}${labels.slice(0, 3).join(`, ${sign}`)}${labels.length > 3 ? ` and ${labels.length - 3} more` : ""}` : "";
    const when = new Date(1000 * one.written).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
    const name = make("div", {}, make("strong", {}, `Generation ${one.generation}`));
    if (one.current) name.append(make("span", { class: "badge" }, "current"));
    if (one.wrong) name.append(make("span", { class: "badge bad" }, one.wrong));
    const from = one.parent && one.parent !== one.generation - 1 ? ` · taught on generation ${one.parent}` : "";
    if (one.made) name.append(make("div", { class: "soft" }, one.made));
    name.append(make("div", { class: "soft" }, `${when} · ${count(one.labels.length, "label")}${few(added, "+")}${few(gone, "−")}${from}`));
    const older = one.generation < (page.generations.find((other) => other.current) || one).generation;
    const back = one.current || one.wrong ? null : make("button", {
      type: "button", class: "quiet", "aria-label": `Make generation ${one.generation} current`, onclick: () => promote(one.generation),
    }, older ? "Roll back" : "Promote");
    return make("li", {}, name, back);
  }));
  const [last] = newest, earlier = newest[1] || last;
  const usual = last ? [known.has(parentOf(last)) ? parentOf(last) : earlier.generation, last.generation] : ["", ""];
  for (const [id, at] of [["compare-first", 0], ["compare-second", 1]]) {
    const chosen = $(id).dataset.chosen ? $(id).value : ""; // else the newest and the one it was taught on
    $(id).replaceChildren(...newest.map((one) => make("option", { value: String(one.generation) }, `generation ${one.generation}`)));
    $(id).value = known.has(Number(chosen)) ? chosen : String(usual[at]);
  }
  $("compare").hidden = newest.length < 2;
}

async function promote(generation) {
  try {
    await request("POST", "v1/generations/promote", { generation });
    forgetTaught();
    await refresh();
    tell(page.asked, "", false);
    if (page.last) await shownAgain(page.asked);
  } catch (error) { complain(error); }
}

// ---- comparing --------------------------------------------------------------------------------------

// The service reads the file. It returns places, not sentences, which are looked up here to be shown.
async function textsOf(file) {
  const rows = rowsOf(file.name, await file.text());
  return rows.filter(({ split }) => !split || split === "test").map(({ text }) => String(text ?? ""));
}

function rowsOf(name, text) {
  if (name.toLowerCase().endsWith(".jsonl")) return text.split("\n").filter((line) => line.trim()).map((line) => JSON.parse(line));
  const mark = name.toLowerCase().endsWith(".tsv") ? "\t" : ",";
  const rows = [[""]];
  let inside = false;
  const source = text.replace(/^\ufeff/, "").replace(/\r\n?/g, "\n");
  for (let i = 0; i < source.length; i += 1) {
    const one = source[i], row = rows.at(-1);
    if (inside && one === '"' && source[i + 1] === '"') { row[row.length - 1] += '"'; i += 1; }
    else if (one === '"') inside = !inside;
    else if (!inside && one === mark) row.push("");
    else if (!inside && one === "\n") rows.push([""]);
    else row[row.length - 1] += one;
  }
  const [head, ...rest] = rows.filter((row) => row.length > 1 || row[0]);
  return rest.map((row) => Object.fromEntries(head.map((column, place) => [column, row[place]])));
}

async function compare() {
  const file = $("compare-file").files[0], type = typeOf(file);
  const query = `first=${$("compare-first").value}&second=${$("compare-second").value}`;
  const job = await request("POST", `v1/generations/compare?${query}`, file, type);
  $("comparison").replaceChildren(make("p", { class: "soft" }, "Comparing …"));
  const texts = await textsOf(file).catch(() => []);
  watch(job, (report) => {
    if (report.status === "done") showComparison(report.result, texts);
    else $("comparison").replaceChildren(make("p", { class: "note" }, report.error));
  });
}

function table(heads, rows, names = 1) {
  return make("div", { class: "scroll" }, make("table", {},
    make("thead", {}, make("tr", {}, ...heads.map((head, i) => make("th", { scope: "col", class: i < names ? "" : "number" }, head)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((cell, i) =>
      cell instanceof Node ? cell : make("td", { class: i ? "number" : "name" }, String(cell))))))));
}

function showComparison(found, texts) {
  const { generations: [first, second], macro_f1: scores, difference } = found;
  const sign = (value) => `${value > 0 ? "+" : value < 0 ? "−" : "±"}${Math.abs(value).toFixed(1)}`;
  const way = (value) => (value > 0.05 ? "up" : value < -0.05 ? "down" : "");
  const delta = 100 * (scores[1] - scores[0]);
  const clear = difference.low > 0 || difference.high < 0;
  const wide = (text) => make("td", { class: "name" }, text);
  const parts = [
    make("p", {}, make("span", { class: "big" }, `Macro-F1 ${(100 * scores[0]).toFixed(1)} → ${(100 * scores[1]).toFixed(1)} `),
      make("span", { class: way(delta) }, sign(delta))),
    make("p", { class: "soft" }, `${count(found.sentences, "sentence")}; ${found.better} only right now, ${found.worse} only right before. ${clear ? "The difference is larger than chance." : "The difference may be chance."}`),
    ...found.missing.slice(0, 10).map(({ note }) => make("p", { class: "note" }, note)),
    make("h3", {}, "Labels (F1)"),
    table(["label", `gen. ${first}`, `gen. ${second}`, "change", "sentences"], found.labels.map(({ label, before, after, sentences: n }) => [
      label, (100 * before).toFixed(1), (100 * after).toFixed(1),
      make("td", { class: `number ${way(100 * (after - before))}` }, sign(100 * (after - before))), n])),
  ];
  if (found.confusions.length) parts.push(make("h3", {}, "Most frequent confusions"),
    table(["right label", "answered", `gen. ${first}`, `gen. ${second}`], found.confusions.slice(0, 10).map(({ label: gold, predicted: guess, before: a, after: b }) =>
      [gold, wide(guess || "unknown"), a, b]), 2));
  if (found.changed.length) parts.push(make("h3", {}, "Answers that changed"),
    table(["sentence", "right label", `gen. ${first}`, `gen. ${second}`], found.changed.slice(0, 100).map(([place, gold, old, now]) => [
      (texts.length === found.sentences && texts[place]) || `row ${place + 1}`, wide(gold), wide(old || "unknown"),
      make("td", { class: `name ${now === gold ? "up" : old === gold ? "down" : ""}` }, now || "unknown")]), 4));
  $("comparison").replaceChildren(...parts);
}

// ---- jobs -------------------------------------------------------------------------------------------

const ACTIVE = ["waiting", "running"];

function watch(job, then = () => {}) {
  page.watched.set(job.id, then);
  showJobs();
}

const some = (labels) => `${labels.slice(0, 5).join(", ")}${labels.length > 5 ? " …" : ""}`;

function summary({ kind, status, result, error, doing }) {
  if (ACTIVE.includes(status)) return doing || "waiting";
  if (!result || error) return error || status;
  if (kind === "learn" && result.already) return "these sentences were learnt before; nothing was counted twice";
  if (kind === "learn") {
    const parts = [result.new.length ? `new: ${some(result.new)}` : "", result.more.length ? `more of: ${some(result.more)}` : ""];
    const score = result.score === null || result.score === undefined ? "" : `; macro-F1 of held-out sentences ${(100 * result.score).toFixed(1)}`;
    return `${count(result.sentences, "sentence")}, ${parts.filter(Boolean).join("; ")}${score}`;
  }
  if (kind === "forget") {
    const rest = result.traces ? `traces remain in ${result.traces}` : "as if it had never been learnt";
    return `forgotten, ${rest}${result.dropped.length ? `; ${count(result.dropped.length, "older generation")} deleted` : ""}`;
  }
  if (kind === "compare") return `macro-F1 ${result.macro_f1.map((score) => (100 * score).toFixed(1)).join(" → ")}`;
  if (result.done_before) return "that was corrected before; nothing was changed twice";
  return `${result.what}${result.note ? `; ${result.note}` : result.exact ? "; exact" : ""}`;
}

async function showJobs() {
  clearTimeout(showJobs.timer);
  let jobs = [];
  try { ({ jobs } = await request("GET", "v1/jobs")); } catch { /* the next look will tell */ }
  $("jobs").hidden = !jobs.length;
  $("job-rows").replaceChildren(...jobs.slice(0, 8).map((job) => {
    const active = ACTIVE.includes(job.status);
    const badge = make("span", { class: `badge ${active || job.status === "done" ? "" : "bad"}` }, job.status);
    const about = make("div", {}, make("strong", {}, job.kind), job.labels ? ` ${some(job.labels)}` : "", badge, make("div", { class: "soft" }, summary(job)),
      ...(job.notes || []).map((note) => make("div", { class: "note" }, note)));
    const stop = active ? make("button", { type: "button", class: "quiet", "aria-label": `Stop job ${job.id}`, onclick: () => request("DELETE", `v1/jobs/${job.id}`).then(showJobs, complain) }, "Stop") : null;
    const meter = active ? make("progress", { "aria-label": `Progress of job ${job.id}` }) : null;
    if (meter && job.total) { meter.max = job.total; meter.value = job.done; }
    return make("li", {}, about, stop, meter);
  }));
  for (const job of jobs) {
    if (ACTIVE.includes(job.status) || !page.watched.has(job.id)) continue;
    const then = page.watched.get(job.id);
    page.watched.delete(job.id);
    try {
      if (job.result && job.result.generation) await generationIs(job.result.generation);
      await then(job);
    } catch (error) { complain(error); }
  }
  const busy = page.watched.size || jobs.some((job) => ACTIVE.includes(job.status));
  clearTimeout(showJobs.timer); // of another look, which began meanwhile
  showJobs.timer = setTimeout(showJobs, busy ? 400 : 5000);
}

// ---- the whole page ---------------------------------------------------------------------------------

async function refresh() {
  try {
    const [labels, generations] = await Promise.all([request("GET", "v1/labels"), request("GET", "v1/generations")]);
    if (generations.current < page.current) forgetTaught(); // somebody has rolled back
    page.current = generations.current;
    page.generation = labels.generation;
    page.labels = labels.labels;
    page.fixed = labels.fixed;
    for (const id of ["teach", "generations", "correct-form"]) $(id).hidden = page.fixed;
    page.generations = generations.generations;
    showLabels();
    showGenerations();
    document.querySelector("header").className = "ok";
    $("status-text").textContent = labels.generation ? `generation ${labels.generation}, ${count(labels.labels.length, "label")}` : "nothing taught yet";
  } catch (error) {
    document.querySelector("header").className = "bad";
    $("status-text").textContent = error.message;
  }
}

async function startStates() {
  const names = await request("GET", "v1/states").catch(() => []);
  page.state = new URLSearchParams(location.search).get("state") || names[0] || "";
  if (!names.length) return;
  $("states").hidden = false;
  $("state").replaceChildren(...names.map((name) => make("option", { value: name }, name)));
  $("state").value = page.state;
  $("state").addEventListener("change", () => { location.search = `?state=${encodeURIComponent($("state").value)}`; });
}

async function start() {
  startToken();
  await startStates();
  startTeaching();
  act($("try-form"), async () => {
    const text = $("sentence").value.trim();
    if (text) await ask(text);
  });
  act($("correct-form"), async () => {
    correct($("correct-label").value);
    $("correct-label").value = "";
  });
  act($("compare-form"), compare);
  for (const id of ["compare-first", "compare-second"])
    $(id).addEventListener("change", () => { $(id).dataset.chosen = "yes"; });
  $("filter").addEventListener("input", showLabels);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.closest("input, textarea, select")) return;
    event.preventDefault();
    $("sentence").focus();
  });
  await refresh();
  await showJobs();
  setInterval(async () => {
    const found = await request("GET", "v1/labels").catch(() => null);
    if (!found || found.generation !== page.generation || document.querySelector("header").className !== "ok") await refresh();
  }, 5000);
}

start();
