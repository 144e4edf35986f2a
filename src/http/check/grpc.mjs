// @grpc/grpc-js on the same port: `npm install @grpc/grpc-js @grpc/proto-loader`; `node grpc.mjs BASE_URL`.
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import { base, equal, key, run } from "./checks.mjs";

const require = createRequire(`${process.cwd()}/`);
const grpc = require("@grpc/grpc-js");
const folder = fileURLToPath(new URL("../../../proto", import.meta.url));
const options = { includeDirs: [folder], keepCase: true, longs: Number, enums: String };
const loaded = require("@grpc/proto-loader").loadSync("trunkline/v1/inference.proto", options);
const { Inference } = grpc.loadPackageDefinition(loaded).trunkline.v1;
const client = new Inference(new URL(base).host, grpc.credentials.createInsecure());
const metadata = new grpc.Metadata();
metadata.set("authorization", `Bearer ${key}`);

const asked = {
  text: "Once upon",
  sampling: { temperature: 0 },
  stopping: { max_tokens: 6, ignore_eos: true },
};

function generate(request) {
  return new Promise((resolve, reject) => {
    const messages = [];
    const stream = client.Generate(request, metadata);
    stream.on("data", (message) => messages.push(message));
    stream.on("error", reject);
    stream.on("end", () => resolve(messages));
  });
}

await run(`@grpc/grpc-js ${require("@grpc/grpc-js/package.json").version}, node ${process.version}`, {
  async model() {
    const model = await new Promise((resolve, reject) =>
      client.GetModelInfo({}, metadata, (error, answer) => (error ? reject(error) : resolve(answer))),
    );
    if (!model.model?.name && !model.name) throw new Error(`no name in ${JSON.stringify(model)}`);
  },
  async generate_as_http_answers() {
    const text = (await generate(asked)).map((message) => message.chunk?.text ?? "").join("");
    const body = { prompt: "Once upon", max_tokens: 6, temperature: 0, ignore_eos: true };
    const headers = { authorization: `Bearer ${key}` };
    const answer = await fetch(`${base}/v1/completions`, { method: "POST", headers, body: JSON.stringify(body) });
    equal(text, (await answer.json()).choices[0].text);
  },
  async sixty_four_at_once() {
    const all = await Promise.all(Array.from({ length: 64 }, () => generate(asked)));
    equal(all.every((messages) => messages.at(-1).finish), true);
  },
  async wrong_value_is_invalid_argument() {
    try {
      await generate({ ...asked, sampling: { temperature: -1 } });
    } catch (error) {
      equal(error.code, grpc.status.INVALID_ARGUMENT);
      return;
    }
    throw new Error("not refused");
  },
});
