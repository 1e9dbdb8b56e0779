// Draws the Mermaid diagrams of a page in its colours, and again if the reader changes them.
(() => {
  const library = new URL("mermaid.min.js", document.currentScript.src).href;
  const dark = () => {
    const chosen = document.body.dataset.theme;
    return chosen === "dark" || (chosen !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  };
  const start = () => {
    const diagrams = [...document.querySelectorAll(".highlight-mermaid")].map((code) => {
      const node = document.createElement("pre");
      node.className = "mermaid";
      node.style.overflowX = "auto";
      const text = code.textContent.trim();
      code.replaceWith(node);
      return { node, text };
    });
    if (diagrams.length === 0) return;
    const draw = async () => {
      mermaid.initialize({ startOnLoad: false, theme: dark() ? "dark" : "default" });
      for (const { node, text } of diagrams) {
        node.removeAttribute("data-processed");
        node.textContent = text;
      }
      await mermaid.run({ nodes: diagrams.map((d) => d.node) });
    };
    const script = document.createElement("script");
    script.src = library;
    script.onload = () => {
      draw();
      new MutationObserver(draw).observe(document.body, { attributes: true, attributeFilter: ["data-theme"] });
    };
    document.head.append(script);
  };
  document.addEventListener("DOMContentLoaded", start);
})();
