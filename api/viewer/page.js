// What stands around the picture: title, figures, legend, and the tables of stages and baselines.

function byId(id) { return document.getElementById(id); }

function fillPage(content) {
  document.title = `${content.profile} on ${content.cluster}`;
  byId("title").textContent = document.title;
  byId("subtitle").textContent = subtitleOf(content);
  byId("subtitle").title = content.provenance;
  byId("figures").replaceChildren(...figuresOf(content).map(([name, values]) => figureBox(name, values, content)));
  byId("picture").setAttribute("aria-label", summaryOf(content));
  byId("tables").replaceChildren(...content.plans.flatMap((plan) => tablesOf(plan, content)));
}

function subtitleOf(content) {
  const plan = content.plans[0];
  const size = content.microbatchSize > 1 ? ` of ${content.microbatchSize} samples` : "";
  const microbatches = plural(content.numMicrobatches, "microbatch", "microbatches");
  const { source, plannerVersion, stoppedBy } = plan.figures;
  const history = source ? `, found by ${source}${stoppedBy ? ` (stopped by ${stoppedBy})` : ""}` : "";
  const version = plannerVersion ? `, pipeplan ${plannerVersion}` : "";
  return `${microbatches}${size} through ${plural(plan.stages.length, "stage")} on ${plural(plan.devices.length, "device")}${history}${version}`;
}

// [name, one value per plan or one for all]; a value is {text, note?, mood?}.
function figuresOf(content) {
  const figures = content.plans.map((plan) => plan.figures);
  const bound = content.lowerBoundNs;
  const objective = content.objective === "span" ? "spanNs" : "makespanNs";
  const rows = [
    ["makespan", figures.map((f) => ({ text: inMs(f.makespanNs) }))],
    ["span", figures.map((f) => ({ text: inMs(f.spanNs) }))],
    ["bubble", figures.map((f) => ({ text: inPercent(f.bubble) }))],
  ];
  if (isNumber(bound)) {
    rows.push(["lower bound", [{ text: inMs(bound), note: typeof figures[0].boundKind === "string" ? figures[0].boundKind : "" }]]);
    rows.push(["gap to the bound", figures.map((f) => ({ text: inPercent((f[objective] - bound) / f[objective]) }))]);
  }
  rows.push(["peak memory", content.plans.map((plan) => peakFigure(plan))]);
  if (figures.some((f) => "passed" in f)) rows.push(["verifier", figures.map((f) => verdictFigure(f))]);
  return rows;
}

function peakFigure(plan) {
  const share = Math.max(...plan.devices.map((device) => device.peakBytes / Math.max(1, device.limitBytes)));
  return { text: inPercent(share, 0), note: "of the limit", mood: share > 1 ? "bad" : "" };
}

function verdictFigure({ passed, numViolations }) {
  if (passed === true) return { text: "passed", mood: "good" };
  return passed === false ? { text: plural(numViolations, "violation"), mood: "bad" } : { text: "not run" };
}

function figureBox(name, values, content) {
  const tagged = values.length > 1;
  const cells = values.map((value, index) => {
    const cell = element("dd", { className: [tagged ? "pair" : "", value.mood ?? ""].join(" ").trim() || null });
    if (tagged) cell.append(element("span", { text: content.plans[index].letter, className: "tag" }), " ");
    cell.append(value.text);
    if (value.note && !tagged) cell.append(" ", element("small", { text: shorten(value.note, 40), title: value.note }));
    return cell;
  });
  return element("div", {}, [element("dt", { text: name }), ...cells]);
}

function fillLegend(content, theme, pixelRatio) {
  const items = [];
  KINDS.forEach((kind, number) => {
    if (!content.plans.some((plan) => plan.usedKinds[number])) return;
    const chunks = Math.min(SHADES.length, Math.max(...content.plans.flatMap((plan) => plan.devices.map((device) => device.stages.length))));
    items.push([`${kind} ${KIND_WORDS[number]}`, stripes(theme.kinds[number].slice(0, chunks))]);
  });
  items.push(["idle", (pen) => { pen.fillStyle = makeHatch(pen, theme, pixelRatio); pen.fillRect(0, 0, 16, 12); }]);
  if (content.plans.some((plan) => plan.synchronisations.length)) items.push(["synchronisation", stripes([theme.synchronisation])]);
  if (content.plans.some((plan) => plan.optimizerNs)) items.push(["optimizer", stripes([theme.optimizer])]);
  byId("legend").replaceChildren(...items.map(([text, draw]) => legendItem({ text, draw, pixelRatio })));
}

function stripes(colours) {
  return (pen) => colours.forEach((colour, index) => {
    pen.fillStyle = colour;
    pen.fillRect((index * 16) / colours.length, 0, 16 / colours.length, 12);
  });
}

function legendItem({ text, draw, pixelRatio }) {
  const swatch = element("canvas", { attributes: { "aria-hidden": "true" } });
  swatch.width = 16 * pixelRatio;
  swatch.height = 12 * pixelRatio;
  const pen = swatch.getContext("2d");
  pen.setTransform(pixelRatio, 0, 0, pixelRatio, 0, 0);
  draw(pen);
  return element("li", {}, [swatch, document.createTextNode(text)]);
}

function tablesOf(plan, content) {
  const tables = [tableBox(plan.letter ? `Stages of plan ${plan.letter}` : "Stages", stageTable(plan))];
  if (plan.baselines.length && plan.index === 0) tables.push(tableBox("Baselines", baselineTable(plan, content)));
  return tables;
}

function tableBox(title, table) { return element("section", { className: "table" }, [element("h2", { text: title }), table]); }

function makeTable(columns, rows) {
  const head = columns.map(({ name, number }) => element("th", { text: name, className: number ? "number" : null, attributes: { scope: "col" } }));
  const body = rows.map(({ cells, className = null }) => element("tr", { className }, cells.map((cell, index) => {
    const made = element("td", { className: columns[index].className ?? (columns[index].number ? "number" : null), title: cell.title ?? null });
    made.append(cell.node ?? cell.text ?? cell);
    return made;
  })));
  return element("table", {}, [element("thead", {}, [element("tr", {}, head)]), element("tbody", {}, body)]);
}

function stageTable(plan) {
  const kinds = KINDS.map((_, kind) => kind).filter((kind) => plan.usedKinds[kind]);
  const columns = [
    { name: "stage", number: true }, { name: "layers" }, { name: "devices" },
    ...kinds.map((kind) => ({ name: KINDS[kind], number: true })),
  ];
  return makeTable(columns, plan.stages.map((stage, number) => ({
    cells: [String(number), layersCell(stage), devicesCell(plan, stage), ...kinds.map((kind) => durationCell(stage, kind))],
  })));
}

function durationCell(stage, kind) {
  return kind === WEIGHT_GRAD && !stage.hasWeightGrad ? "–" : inMs(stage.durationsNs[kind]);
}

function layersCell({ layers, recompute }) {
  const ends = layers.length < 3 ? layers : [layers[0], "…", layers[layers.length - 1]];
  const count = layers.length < 3 ? "" : ` (${layers.length})`;
  const text = `${ends.map((name) => shorten(name, 32)).join(layers.length < 3 ? ", " : " ")}${count}${recompute ? ", recomputed" : ""}`;
  return { text, title: shorten(layers.join(", "), 2000) };
}

function devicesCell(plan, stage) {
  const names = stage.replicas.map((group) => group.map((row) => plan.devices[row].name).join(" + "));
  const text = names.length > 3 ? `${names.length} replicas: ${shorten(names[0], 20)} … ${shorten(names[names.length - 1], 20)}` : names.map((name) => shorten(name, 40)).join(", ");
  return { text, title: shorten(names.join(", "), 2000) };
}

function baselineTable(plan, content) {
  const { makespanNs, spanNs, bubble } = plan.figures;
  const bySpan = content.objective === "span";
  const value = (row) => (bySpan ? row.spanNs : row.makespanNs);
  const peak = Math.max(...plan.devices.map((device) => device.peakBytes / Math.max(1, device.limitBytes)));
  const own = { name: "this plan", makespanNs, spanNs, bubble, peakFraction: peak, fits: peak <= 1, note: "", chosen: true };
  const known = plan.baselines.filter((row) => isNumber(value(row)));
  const most = Math.max(value(own), ...known.filter((row) => row.fits).map(value));
  const order = [own, ...plan.baselines].sort((a, b) => rank(a) - rank(b) || value(a) - value(b));
  const columns = [
    { name: "method", className: "name" }, { name: bySpan ? "span" : "makespan", number: true }, { name: "", className: "bar" },
    { name: "to this", number: true }, { name: "bubble", number: true }, { name: "peak memory", number: true },
  ];
  return makeTable(columns, order.map((row) => ({
    className: row.chosen ? "chosen" : row.fits ? null : "unfit",
    cells: baselineCells(row, { time: value(row), own: value(own), most }),
  })));
}

// First what fits, then what would not, then what does not apply.
function rank(row) { return !isNumber(row.makespanNs) ? 2 : row.fits ? 0 : 1; }

function baselineCells(row, { time, own, most }) {
  const name = element("span", { text: String(row.name) });
  if (row.note) name.append(element("small", { text: ` ${shorten(String(row.note), 80)}`, title: String(row.note) }));
  const ratio = isNumber(time) && own > 0 ? `${(time / own).toFixed(3)} ×` : "–";
  return [{ node: name }, inMs(time), { node: bar(time, most) }, row.chosen ? "" : ratio, inPercent(row.bubble), memoryCell(row)];
}

function bar(time, most) {
  const made = element("span");
  made.style.width = isNumber(time) ? `${Math.min(100, (100 * time) / most)}%` : "0";
  return made;
}

function memoryCell(row) {
  if (!isNumber(row.peakFraction)) return "–";
  return { node: element("span", { text: inPercent(row.peakFraction, 0), className: row.fits ? null : "bad", title: row.fits ? null : "does not fit" }) };
}
