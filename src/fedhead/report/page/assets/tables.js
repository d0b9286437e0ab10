// Tables that are sorted by a click on a column's name and filtered by a word.
fedhead.value = (row, column) => {
  const cell = row.cells[column];
  const text = cell?.dataset.value ?? cell?.textContent.trim() ?? "";
  return text !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
};

fedhead.sort = (table, column, down) => {
  const body = table.tBodies[0], last = (value) => value === "" || value === "–";
  const order = (a, b) => {
    const [x, y] = [fedhead.value(a, column), fedhead.value(b, column)];
    if (last(x) || last(y)) return last(x) - last(y);  // what is missing stays at the end
    const found = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(y, "en", { numeric: true });
    return down ? -found : found;
  };
  body.append(...[...body.rows].sort(order));
  [...table.tHead.rows[0].cells].forEach((th, i) => {
    th.setAttribute("aria-sort", i === column ? (down ? "descending" : "ascending") : "none");
  });
  fedhead.sorted[table.id] = [column, down];
};

fedhead.filter = (table, words) => {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of table.tBodies[0].rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !wanted.every((word) => text.includes(word));
  }
  fedhead.filtered[table.id] = words;
};

fedhead.startTables = (root) => {
  for (const table of root.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((th, column) => {
      const button = document.createElement("button");
      button.className = "sort";
      button.id = `${table.id}-by-${column}`;
      button.type = "button";
      button.append(...th.childNodes);
      th.append(button);
      button.addEventListener("click", () => {
        const numbers = typeof fedhead.value(table.tBodies[0].rows[0], column) === "number";
        const now = th.getAttribute("aria-sort");
        fedhead.sort(table, column, now === "ascending" || (now !== "descending" && numbers));
      });
    });
    if (table.tBodies[0].rows.length > 10) {
      const label = document.createElement("label"), input = document.createElement("input");
      input.type = "search";
      input.id = `${table.id}-filter`;
      input.addEventListener("input", () => fedhead.filter(table, input.value));
      label.append("Filter ", input);
      const controls = document.createElement("div");
      controls.className = "controls";
      controls.append(label);
      table.closest(".wide").before(controls);
      if (fedhead.filtered[table.id]) fedhead.filter(table, (input.value = fedhead.filtered[table.id]));
    }
    if (fedhead.sorted[table.id]) fedhead.sort(table, ...fedhead.sorted[table.id]);
  }
};
