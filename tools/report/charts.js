// SPDX-License-Identifier: BSD-3-Clause
// Draws the charts of a report from the page's data.
'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const palette = ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#b58900', '#56b4e9', '#7f7f7f'];
const color = (index) => palette[index % palette.length];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const axis = (text, more) => ({title: {display: true, text}, ...more});
const options = (x, y, more) => ({
  animation: false, responsive: true, maintainAspectRatio: false,
  interaction: {mode: 'nearest', intersect: false}, scales: {x, y}, ...more,
});
const make = (id, config) => new Chart(document.getElementById(id), config);
// Losses that fall far are shown on a logarithmic axis.
const scaleFor = (losses) => {
  const positive = losses.filter((loss) => loss > 0);
  return Math.max(...positive) > 30 * Math.min(...positive) ? 'logarithmic' : 'linear';
};

// Shows the charts that the function makes, in the colours of the light or the dark scheme.
function show(makeCharts) {
  let charts = [];
  const draw = () => {
    Chart.defaults.color = css('--faint');
    Chart.defaults.borderColor = css('--line');
    Chart.defaults.font.family = 'system-ui, sans-serif';
    Chart.defaults.plugins.legend.labels.usePointStyle = true;
    Chart.defaults.plugins.legend.labels.pointStyle = 'line';
    charts.forEach((chart) => chart.destroy());
    charts = makeCharts();
    document.documentElement.dataset.drawn = charts.length;
  };
  draw();
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
}
