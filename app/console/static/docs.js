/* Swagger UI over the document in the page. It may send no request, so what would send one is left out. */
const nothing = () => () => null;
window.ui = SwaggerUIBundle({
  spec: JSON.parse(document.getElementById("openapi").textContent),
  dom_id: "#documentation",
  deepLinking: false,
  supportedSubmitMethods: [],
  defaultModelsExpandDepth: 0,
  plugins: [{ wrapComponents: { authorizeBtn: nothing, authorizeOperationBtn: nothing } }],
});
