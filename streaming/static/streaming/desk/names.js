// Gives names to the fields that Django's and Select2's widgets leave without, for who hears the page.

let made = 0;

function labelOf(field) {
  const row = field.closest(".form-row, fieldset");
  const label = field.labels?.[0] || row?.querySelector("label, legend");
  if (label && !label.id) label.id = `label-of-${++made}`;
  return label;
}

function nameAll() {
  for (const field of document.querySelectorAll("input.vDateField, input.vTimeField")) {
    const label = field.labels.length ? null : labelOf(field);
    if (label) {
      const part = field.classList.contains("vDateField") ? "date" : "time";
      field.ariaLabel = `${label.textContent.replace(/:\s*$/, "").trim()} (${part})`;
    }
  }
  for (const select of document.querySelectorAll("select.select2-hidden-accessible")) {
    const label = labelOf(select);
    const shown = select.nextElementSibling?.querySelector(".select2-selection__rendered");
    if (!label || !shown) continue;
    // The label, and what is chosen, which changes.
    for (const part of [shown, shown.closest("[role=combobox]")]) {
      part?.setAttribute("aria-labelledby", `${label.id} ${shown.id}`);
    }
  }
  for (const field of document.querySelectorAll(".tabular td :is(input:not([type=hidden]), select, textarea)")) {
    const column = field.closest("table").tHead?.rows[0].cells[field.closest("td").cellIndex];
    if (column && !field.labels?.length && !field.ariaLabel) field.ariaLabel = column.textContent.trim();
  }
  for (const tip of document.querySelectorAll("span.help-tooltip[aria-label]")) tip.role = "img";
  const search = document.getElementById("searchbar");
  if (search) search.ariaLabel = "Search"; // its label is a picture
}

// The widgets make themselves when the page has loaded.
window.addEventListener("load", () => setTimeout(nameAll));
