// The API as a page, from /openapi.json. FastAPI's own page would load its scripts from another site.
"use strict";

function make(tag, name, ...children) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  node.append(...children);
  return node;
}

function coded(text) {
  return text.split("`").map((part, i) => (i % 2 ? make("code", "", part) : part));
}

function resolved(schema, all) {
  return schema && schema.$ref ? all[schema.$ref.split("/").pop()] || {} : schema || {};
}

function typeOf(schema, all) {
  const own = resolved(schema, all);
  if (own.anyOf) return own.anyOf.map((one) => typeOf(one, all)).filter((one) => one !== "null").join(" or ");
  if (own.type === "array") return `list of ${typeOf(own.items, all)}`;
  return own.title && own.properties ? own.title : own.type || "any";
}

function fields(schema, all) {
  const own = resolved(schema, all);
  const rows = Object.entries(own.properties || {}).map(([name, one]) => make("tr", "",
    make("td", "name", make("code", "", name), (own.required || []).includes(name) ? " *" : ""),
    make("td", "name", typeOf(one, all)),
    make("td", "soft", one.description || (one.default === undefined || one.default === null ? "" : `default ${JSON.stringify(one.default)}`))));
  const inner = Object.values(own.properties || {}).map((one) => resolved(one.items, all)).filter((one) => one.properties);
  return [make("table", "", make("tbody", "", ...rows)), ...inner.flatMap((one) => [make("h3", "", one.title), ...fields(one, all)])];
}

function shown(path, method, operation, all) {
  const card = make("section", "card operation");
  const locked = operation.security ? make("span", "badge", "token") : "";
  card.append(make("h2", "", make("code", "", `${method.toUpperCase()} ${path}`), locked), make("p", "", operation.description || operation.summary));
  const query = (operation.parameters || []).map((one) => make("tr", "",
    make("td", "name", make("code", "", one.name), one.required ? " *" : ""), make("td", "name", typeOf(one.schema, all)), make("td", "soft", one.description || one.schema.description || "")));
  if (query.length) card.append(make("h3", "", "In the address"), make("table", "", make("tbody", "", ...query)));
  for (const [type, { schema }] of Object.entries((operation.requestBody || {}).content || {})) {
    card.append(make("h3", "", `Body, ${type}`));
    if (resolved(schema, all).properties) card.append(...fields(schema, all));
  }
  for (const [status, reply] of Object.entries(operation.responses)) {
    const schema = ((reply.content || {})["application/json"] || {}).schema;
    if (status.startsWith("2") && schema) card.append(make("h3", "", `Answer ${status}`), ...fields(schema, all));
  }
  const wrong = Object.entries(operation.responses).filter(([status]) => !status.startsWith("2"));
  if (wrong.length) card.append(make("p", "soft", wrong.map(([status, reply]) => `${status}: ${reply.description}`).join(" ")));
  return card;
}

fetch("/openapi.json").then((reply) => reply.json()).then((found) => {
  document.getElementById("about").textContent = `version ${found.info.version}`;
  const cards = Object.entries(found.paths).flatMap(([path, operations]) =>
    Object.entries(operations).map(([method, operation]) => shown(path, method, operation, found.components.schemas)));
  document.getElementById("operations").replaceChildren(make("section", "card", ...found.info.description.split("\n\n").map((part) => make("p", "", ...coded(part)))), ...cards);
});
