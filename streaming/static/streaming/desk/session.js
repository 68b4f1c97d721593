// The reference code of a session is copied by a press; without this it is selected by a click.
for (const button of document.querySelectorAll("[data-copies]")) {
  if (!navigator.clipboard) continue;
  button.hidden = false;
  button.addEventListener("click", async () => {
    const said = button.nextElementSibling;
    try {
      await navigator.clipboard.writeText(document.getElementById(button.dataset.copies).textContent);
      said.textContent = "Copied";
    } catch {
      said.textContent = "The browser refused";
    }
  });
}
