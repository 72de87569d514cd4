"use strict";

for (const chart of data().curves) lineChart(document.getElementById("curves").appendChild(make("figure")), chart);
