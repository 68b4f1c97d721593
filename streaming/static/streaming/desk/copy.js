// Buttons that copy what is in a field: data-copies names the field, data-copied where that is said.

for (const button of document.querySelectorAll("[data-copies]")) {
  const field = document.getElementById(button.dataset.copies);
  const told = document.querySelector(`[data-copied="${button.dataset.copies}"]`);
  button.addEventListener("click", async () => {
    field.select(); // what is selected can be copied by hand where the page may not
    try {
      await navigator.clipboard.writeText(field.value);
      told.textContent = "Copied.";
    } catch {
      told.textContent = "Selected: copy it with the keyboard.";
    }
  });
}
