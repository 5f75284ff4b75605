// What the page does in the browser alone: addresses of its tabs, the list of past races, what
// "Why?" shows of the race on the board, races of what the board shows, and copying.
window.derby = (() => {
  const RACES = 20;
  const RECORDS = 2_000_000; // characters of all records: a browser's storage holds some five million
  const RECORD = 1_000_000; // of one, which is packed: the server takes no more
  const MEASURED = "measured passes"; // what backend/results/drawing.py calls the curve itself
  const COLOURS = ["#8a94a3", "#4c78a8", "#f58518", "#e45756", "#72b7b2", "#54a24b", "#eeca3b", "#b279a2", "#ff9da6", "#9d755d"];

  const racing = () =>
    ["waiting", "preparing", "running"].includes(document.querySelector("#board .race")?.dataset.phase);
  const run = () => document.querySelector("#run").click();
  let again = false; // another race is wanted as soon as this one has stopped

  // The values of the settings that ask for the race on the board, with one more column.
  const asked = (names, { form = {} }, column, values) => {
    const lineup = column ? `${form.lineup}\n${column}` : form.lineup;
    return names.map((name, i) => ({ ...form, lineup })[name] ?? values[i]);
  };

  const tabOf = () => new URL(location).searchParams.get("tab") ?? "race";

  // That of the address, if it names one; until it is selected, gradio selects the first one.
  let first = new URL(location).searchParams.get("tab");

  function go([tab]) {
    const url = new URL(location);
    if (first) {
      if (tab === first) first = "";
      return;
    }
    if (tabOf() === tab) return;
    tab === "race" ? url.searchParams.delete("tab") : url.searchParams.set("tab", tab);
    history.pushState(history.state, "", url);
  }

  addEventListener("popstate", () =>
    document.querySelector(`#tab-${tabOf()}-button`)?.click());

  // The preset that a line-up is, and what it shows; none of one that was edited.
  const preset = ([known], lineup) =>
    Object.hasOwn(known, lineup.trim()) ? known[lineup.trim()] : [null, ""];

  function why(drawing) {
    const { reasons = [], figures = { headers: [], rows: [] }, curve = [] } = drawing?.why ?? {};
    const series = [...new Set(curve.map(({ of }) => of))].map((of, i) => ({ of, color: COLOURS[i % COLOURS.length] }));
    const wide = Math.max(...curve.filter(({ of }) => of !== MEASURED).map(({ rows }) => rows), 4);
    // A column is one point, and lines of one point are not drawn. Much wider passes would flatten it.
    const points = curve.flatMap(({ rows, times, of }) =>
      (of === MEASURED ? [0] : [-0.2, 0.2]).map((d) => [rows + d, times, of]))
      .filter(([rows]) => rows <= 2 * wide);
    return [
      reasons.join("\n"),
      {
        headers: ["figure", ...figures.rows.map(([name]) => name)],
        data: figures.headers.slice(1).map((title, i) => [title, ...figures.rows.map((row) => row[i + 1])]),
        metadata: null,
      },
      { // the plot names its series anew where their colours change
        __type__: "update",
        value: {
          columns: ["rows", "times", "of"],
          data: points,
          datatypes: { rows: "quantitative", times: "quantitative", of: "nominal" },
          mark: "line",
        },
        color_map: Object.fromEntries(series.map(({ of, color }) => [of, color])),
      },
      series,
    ];
  }

  const row = (race) => [
    new Date(race.when).toLocaleString(), race.prompt, race.columns, race.about, race.result,
  ];

  function keep(races, drawing) {
    races ??= [];
    if (again) {
      again = false;
      setTimeout(run);
    }
    if (!drawing?.record || races.some((race) => race.race === drawing.race)) return [races];
    const entry = {
      race: drawing.race,
      when: Date.now(),
      prompt: drawing.prompt.slice(0, 60),
      columns: drawing.columns.map(({ name }) => name).join(", "),
      about: drawing.about.split("; ")[0],
      result: drawing.status,
      record: drawing.record.length <= RECORD ? drawing.record : "",
    };
    let room = RECORDS;
    return [[entry, ...races].slice(0, RACES).map((race) => {
      room -= race.record.length;
      return room < 0 ? { ...race, record: "" } : race;
    })]; // the list of one output, which is a list
  }

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch { // of a page without https
      const area = document.body.appendChild(document.createElement("textarea"));
      area.value = text;
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    return [];
  }

  return {
    go,
    preset,
    why,
    series(node, all) {
      node.replaceChildren(...[...all].map(({ of, color }) => {
        const name = document.createElement("span");
        name.textContent = of;
        name.style.setProperty("--of", color);
        return name;
      }));
    },
    keep,
    copy,
    run: () => (run(), []),
    enter() {
      again = racing();
      (again ? document.querySelector("#stop") : document.querySelector("#run")).click();
      return [];
    },
    // Open settings have the focus, until Escape closes them.
    settings() {
      const panel = document.querySelector("#settings");
      setTimeout(() => panel.querySelector("input, textarea")?.focus(), 350); // it slides in
      panel.onkeydown = ({ key }) => {
        if (key !== "Escape") return;
        panel.querySelector(".toggle-button").click();
        document.querySelector("#opener").focus();
      };
      return [];
    },
    again: (names, drawing, ...values) => asked(names, drawing, "", values),
    next: (names, drawing, ...values) => asked(names, drawing, drawing.next.column, values),
    extend: (names, drawing, column, ...values) => asked(names, drawing, column, values),
    rows: (headers, races) => ({ headers, data: (races ?? []).map(row), metadata: null }),
    record: (place, races) => races[place].record,
    clear: (races) => (confirm("Delete the list of races?") ? [[]] : [races]),
    save(name, text) {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([text]));
      link.download = name;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
      return [];
    },
    // A record as the page sends it: see `packed` in page/race.py.
    async pack(text) {
      const packed = new Blob([text]).stream().pipeThrough(new CompressionStream("gzip"));
      const bytes = new Uint8Array(await new Response(packed).arrayBuffer());
      return btoa(bytes.reduce((all, byte) => all + String.fromCharCode(byte), ""));
    },
    share(query) {
      const link = new URL(query ? `?${query}` : location.pathname, location).href;
      copy(link);
      return link;
    },
  };
})();
