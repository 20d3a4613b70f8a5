"use strict";
// The counts, for whoever opens the console.
const toyCounts = document.getElementById("toy-counts");
if (toyCounts) unpack(toyCounts).then(console.log);
