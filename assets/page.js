// What the page does in the browser alone: addresses of its tabs, the list of past races, what
// "Why?" shows of the race on the board, and a link's copying.
window.derby = (() => {
  const RACES = 20;
  const RECORDS = 2_000_000; // characters of all records: a browser's storage holds some five million
  const RECORD = 250_000;
  const MEASURED = "measured passes"; // what backend/results/drawing.py calls the curve itself
  const COLOURS = ["#8a94a3", "#4c78a8", "#f58518", "#e45756", "#72b7b2", "#54a24b", "#eeca3b", "#b279a2", "#ff9da6", "#9d755d"];

  const tabOf = () => new URL(location).searchParams.get("tab") ?? "race";

  let first = tabOf(); // by the address; until it is selected, gradio selects the first one

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
      reasons,
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
    new Date(race.when).toLocaleString(), race.prompt, race.fastest, race.speedup,
    race.temperature, race.seed, race.tokens,
  ];

  function keep(races, drawing) {
    races ??= [];
    const record = drawing?.files?.["race.json"];
    if (!record || races.some((race) => race.race === drawing.race)) return [races];
    const { request } = JSON.parse(record);
    const leaders = drawing.leaders.map((index) => drawing.columns[index]);
    const entry = {
      race: drawing.race,
      when: Date.now(),
      prompt: request.prompt.slice(0, 60),
      fastest: leaders.map(({ name }) => name).join(", ") || "none",
      speedup: leaders.map(({ speedup }) => `${speedup.toFixed(2)}\u00d7`).join(", "),
      temperature: request.sampling.temperature,
      seed: request.sampling.seed,
      tokens: request.max_new_tokens,
      form: drawing.form,
      record: record.length <= RECORD ? record : "",
    };
    let room = RECORDS;
    return [[entry, ...races].slice(0, RACES).map((race) => {
      room -= race.record.length;
      return room < 0 ? { ...race, record: "" } : race;
    })]; // the list of one output, which is a list
  }

  function open(names, place, races, board, ...values) {
    const { record, form } = races[place];
    const drawing = record ? JSON.parse(record).drawing : board;
    const files = { "race.json": record };
    const drawn = record ? { ...drawing, race: races[place].race, phase: "recorded", files } : board;
    return [drawn, ...names.map((name, i) => form[name] ?? values[i])];
  }

  return {
    go,
    open,
    preset,
    why,
    keep,
    rows: (headers, races) => ({ headers, data: (races ?? []).map(row), metadata: null }),
    clear: (races) => (confirm("Delete the list of races?") ? [[]] : [races]),
    save([name], text) {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([text]));
      link.download = name;
      link.click();
      URL.revokeObjectURL(link.href);
    },
    share(query) {
      const link = new URL(query ? `?${query}` : location.pathname, location).href;
      navigator.clipboard?.writeText(link).catch(() => {});
      return link;
    },
  };
})();
