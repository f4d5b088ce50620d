import assert from "node:assert/strict";
import { test } from "node:test";

import {
  areWhole,
  axisLabels,
  drawn,
  hasValues,
  momentOf,
  nearestTo,
  placeOf,
  placesOf,
  stepOf,
} from "#octavo/plot-data.js";

const HOUR = 3600;
const DAY = 24 * HOUR;

test("what stacks stands on the shown ones before it, and a line keeps its own values", () => {
  const series = [
    { values: [1, null, 3], stack: true },
    { values: [10, 20, null], stack: true },
    { values: [5, null, 7] },
    { values: [100, 100, 100], stack: true },
  ];
  assert.deepEqual(drawn(series, [true, true, true, true]), [[1, 0, 3], [11, 20, 3], [5, null, 7], [111, 120, 103]]);
  assert.deepEqual(drawn(series, [true, false, true, true]), [
    [1, 0, 3],
    [null, null, null],
    [5, null, 7],
    [101, 100, 103],
  ]);
});

test("a bar that adds nothing is none, and those above stand where they would", () => {
  const series = [
    { values: [1, 2], stack: true },
    { values: [0, 3], stack: true },
    { values: [4, null], stack: true },
  ];
  assert.deepEqual(drawn(series, [true, true, true], true), [[1, 2], [null, 5], [5, null]]);
});

test("zero is a value, gaps are none", () => {
  assert.equal(hasValues([{ values: [null, undefined] }, { values: [] }]), false);
  assert.equal(hasValues([{ values: [null] }, { values: [0] }]), true);
  assert.equal(areWhole([{ values: [1, null, 3] }]), true);
  assert.equal(areWhole([{ values: [1, 0.5] }]), false);
});

test("a day of 23 hours is a day", () => {
  // Berlin: clocks went forward on 29 March 2026.
  const days = [Date.UTC(2026, 2, 27, 23), Date.UTC(2026, 2, 28, 23), Date.UTC(2026, 2, 29, 22)].map((ms) => ms / 1000);
  assert.equal(stepOf(days), 23 * HOUR);
  assert.deepEqual(axisLabels(days, { span: days[2] - days[0], step: stepOf(days), zone: "Europe/Berlin" }), [
    "Mar 28",
    "Mar 29",
    "Mar 30",
  ]);
  assert.equal(momentOf(days[2], stepOf(days), "Europe/Berlin"), "Mon, Mar 30, 2026");
  assert.equal(stepOf([5]), Number.POSITIVE_INFINITY);
});

test("times are told in the zone that was asked for, with seconds where points are that close", () => {
  const noon = Date.UTC(2026, 4, 1, 12) / 1000;
  assert.equal(momentOf(noon, HOUR, "America/New_York"), "May 1, 08:00");
  assert.equal(momentOf(noon, 2, "Asia/Kolkata"), "May 1, 17:30:00");
  assert.deepEqual(axisLabels([noon], { span: 30 * 60, step: 2, zone: "UTC" }), ["12:00"]);
  assert.deepEqual(axisLabels([noon], { span: 60, step: 2, zone: "UTC" }), ["12:00:00"]);
  assert.deepEqual(axisLabels([noon], { span: 2 * DAY, step: HOUR, zone: "UTC" }), ["Fri 12:00"]);
});

test("labels stand as far apart as they need to, in round steps", () => {
  assert.deepEqual(placesOf(5, 0.4), [0, 1, 2, 3, 4]);
  assert.deepEqual(placesOf(30, 6), [0, 7, 14, 21, 28]);
  assert.deepEqual(placesOf(0, 1), []);
  assert.equal(placesOf(10_000, 1500).length, 7);
});

test("a time lies at its place between points, also where they are uneven, and beyond the ends at them", () => {
  const times = [100, 200, 600];
  assert.equal(placeOf(times, 150), 0.5);
  assert.equal(placeOf(times, 400), 1.5);
  assert.equal(placeOf(times, 50), 0);
  assert.equal(placeOf(times, 900), 2);
  assert.equal(placeOf([], 1), null);
  assert.equal(nearestTo(times, 190), 1);
  assert.equal(nearestTo([], 190), null);
});
