/* Reads messages of a worker, base64, a line each; writes what the browser's table says after each, as JSON. */

import { createHash } from "node:crypto";
import { createInterface } from "node:readline";

import { Feed } from "#octavo/block-table.js";

let worker = "";
let gaps = 0;
const feed = new Feed({ onChange: () => {}, onGap: () => (gaps += 1) });

for await (const line of createInterface({ input: process.stdin })) {
  const bytes = Buffer.from(line, "base64");
  const message = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  const size = bytes.readUInt32LE(0);
  const named = JSON.parse(bytes.subarray(4, 4 + size)).worker;
  if (named !== worker) feed.begin((worker = named));
  await feed.take(message);
  const { table } = feed;
  const columns = table.columns.map((column) =>
    createHash("sha256").update(new Uint8Array(column.buffer, column.byteOffset, column.byteLength)).digest("hex"),
  );
  const rows = [...table.rows.values()].sort((a, b) => a.number - b.number);
  console.log(JSON.stringify({ number: table.head?.number ?? 0, gaps, tenants: table.tenants, columns, rows, figures: table.figures }));
}
