/** Charts by the library that the server's Python package ships; loaded when the first one is drawn. */
let loading;

function library() {
  loading ||= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "/console/charts.js";
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("the chart library did not load"));
    document.head.append(script);
  });
  return loading;
}

/** One line for each value that the learner told at its steps. */
export async function curve(place, points) {
  if (!points || !points.length) return;
  const plotly = await library();
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--soft").trim();
  const names = [...new Set(points.flatMap((p) => Object.keys(p).filter((n) => typeof p[n] === "number")))].filter((n) => !["step", "steps", "at"].includes(n));
  const lines = names.map((name, i) => ({
    x: points.map((p) => p.step), y: points.map((p) => p[name] ?? null), name, mode: "lines", connectgaps: true, yaxis: i ? "y2" : "y",
  }));
  const layout = {
    margin: { l: 50, r: 50, t: 10, b: 36 }, paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { color: ink },
    xaxis: { title: { text: "step" }, gridcolor: "#8883" }, yaxis: { title: { text: names[0] }, gridcolor: "#8883" },
    yaxis2: { overlaying: "y", side: "right", showgrid: false }, legend: { orientation: "h", y: 1.12 },
  };
  if (names.length) await plotly.react(place, lines, layout, { displayModeBar: false, responsive: true });
}
