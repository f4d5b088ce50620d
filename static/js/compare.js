/* Choosing two versions goes to the page that compares them. */

const form = document.querySelector("#compare");
form?.addEventListener("change", () => {
  const { from, to } = form.elements;
  location.href = `${form.dataset.base}${from.value}/diff/${to.value}${location.search}`;
});
