"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const part = (id) => document.getElementById(id);
  const STORIES = {
    "descent linear": "Linear features: the fixed point has the mean and covariance of a Gaussian exactly, once the velocity is zero. Descent takes many small steps towards it, and its last digits come late.",
    "descent linear+random": "Linear and random features: beside mean and covariance, random cosines are matched, and the particles fill the shape.",
    "descent RBF": "The usual SVGD. The particles spread evenly over the density, but no expectation is exact, and with few particles the spread is too small.",
    "levenberg-marquardt linear": "The same fixed point as an equation that is solved: a few steps to machine precision. For a Gaussian the moments are exact then; for other shapes linear features match what they can.",
    "levenberg-marquardt linear+random": "Linear and random features, solved: as many expectations are exact as there are features.",
    "levenberg-marquardt RBF": "The fixed point of the usual SVGD, solved to the end: its errors are those of the kernel, not of the steps.",
    "frame, walk, weigh ": "What fit(target) does: a map under which the target is nearly normal, short walks that leave it invariant, and weights that make Stein's equations exact. The last step moves nothing and weighs the same draws.",
  };
  const chosen = () => data.runs.find((run) =>
    run.solver === part("solver").value && String(run.n) === part("n").value
    && (run.kernel === part("kernel").value || run.kernel === ""));
  const fill = (id, values) => {
    part(id).replaceChildren(...values.map((value) => new Option(value, value)));
  };
  const distinct = (name) => [...new Set(data.runs.map((run) => run[name]))].filter((value) => value !== "");
  fill("solver", distinct("solver"));
  fill("kernel", distinct("kernel"));
  fill("n", distinct("n"));

  const canvas = part("picture"), context = canvas.getContext("2d");
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const across = (x) => (x - data.low[0]) / (data.high[0] - data.low[0]) * canvas.width;
  const up = (y) => canvas.height - (y - data.low[1]) / (data.high[1] - data.low[1]) * canvas.height;

  const paintDensity = () => {
    const rows = data.density.length, columns = data.density[0].length;
    const wide = canvas.width / columns, high = canvas.height / rows;
    context.fillStyle = style("--blue");
    for (let i = 0; i < rows; i++) {
      for (let j = 0; j < columns; j++) {
        const share = data.density[i][j];
        if (share < 0.004) continue;
        context.globalAlpha = 0.55 * Math.sqrt(share);
        context.fillRect(j * wide, canvas.height - (i + 1) * high, wide + 0.5, high + 0.5);
      }
    }
    context.globalAlpha = 1;
  };
  const paint = () => {
    const run = chosen(), frame = run.frames[Number(part("step").value)];
    context.clearRect(0, 0, canvas.width, canvas.height);
    paintDensity();
    context.strokeStyle = style("--paper");
    context.fillStyle = style("--ink");
    frame.x.forEach((point, i) => {
      const radius = 4.5 * Math.sqrt(Math.max(frame.w[i], 0));
      context.beginPath();
      context.arc(across(point[0]), up(point[1]), radius, 0, 2 * Math.PI);
      context.fill();
      context.stroke();
    });
    part("words").textContent = frame.words;
    part("mean").textContent = frame.mean.toExponential(1);
    part("sd").textContent = frame.sd.toExponential(1);
    part("gradients").textContent = frame.gradients.toLocaleString("en");
    part("story").textContent = STORIES[`${run.solver} ${run.kernel}`] || "";
  };
  const restart = () => {
    const run = chosen();
    part("kernel").disabled = run.kernel === "";
    part("step").max = String(run.frames.length - 1);
    part("step").value = "0";
    paint();
  };
  let timer = null;
  const stop = () => { clearInterval(timer); timer = null; part("go").textContent = "Play"; };
  const move = (by) => {
    const step = part("step"), next = Number(step.value) + by;
    if (next < 0 || next > Number(step.max)) return false;
    step.value = String(next);
    paint();
    return true;
  };
  part("back").addEventListener("click", () => { stop(); move(-1); });
  part("forward").addEventListener("click", () => { stop(); move(1); });
  part("step").addEventListener("input", () => { stop(); paint(); });
  part("go").addEventListener("click", () => {
    if (timer !== null) { stop(); return; }
    if (Number(part("step").value) === Number(part("step").max)) { part("step").value = "0"; paint(); }
    part("go").textContent = "Pause";
    timer = setInterval(() => { if (!move(1)) stop(); }, 700);
  });
  for (const id of ["solver", "kernel", "n"]) part(id).addEventListener("change", () => { stop(); restart(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  restart();
})();
