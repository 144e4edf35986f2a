// One line per check: `ok NAME` or `FAIL NAME: what`; the exit status tells whether one failed.
export const base = (process.argv[2] ?? "http://127.0.0.1:50051").replace(/\/$/, "");
export const key = process.env.TRUNKLINE_TOKEN ?? "none";

export function equal(got, expected, what = "value") {
  const [a, b] = [JSON.stringify(got), JSON.stringify(expected)];
  if (a !== b) throw new Error(`${what} is ${a}, expected ${b}`);
}

export async function run(client, checks) {
  console.log(`# ${client}`);
  let failed = 0;
  for (const [name, check] of Object.entries(checks)) {
    try {
      await check();
      console.log(`ok ${name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAIL ${name}: ${String(error?.message ?? error).replace(/\s+/g, " ").slice(0, 300)}`);
    }
  }
  process.exit(failed ? 1 : 0);
}
