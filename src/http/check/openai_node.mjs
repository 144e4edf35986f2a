// The openai package of npm: `npm install openai`; `node openai_node.mjs BASE_URL`.
import { createRequire } from "node:module";
import { base, equal, key, run } from "./checks.mjs";

const require = createRequire(`${process.cwd()}/`);
const OpenAI = require("openai").default ?? require("openai");
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: key, maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "Tell me a story." }];
const short = { model, temperature: 0, max_tokens: 6, ignore_eos: true };

await run(`openai-node ${require("openai/version").VERSION}, node ${process.version}`, {
  async chat() {
    const answer = await client.chat.completions.create({ messages, ...short });
    equal(answer.usage.completion_tokens, 6);
    equal(answer.choices[0].message.role, "assistant");
  },
  async chat_streamed() {
    const whole = (await client.chat.completions.create({ messages, ...short })).choices[0].message.content;
    let text = "";
    let usage;
    const stream = await client.chat.completions.create({
      messages, stream: true, stream_options: { include_usage: true }, ...short,
    });
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? "";
      usage = chunk.usage ?? usage;
    }
    equal(text, whole);
    equal(usage.completion_tokens, 6);
  },
  async chat_stream_helper() {
    const stream = client.chat.completions.stream({ messages, ...short });
    let text = "";
    stream.on("content", (delta) => (text += delta));
    const final = await stream.finalChatCompletion();
    equal(final.choices[0].message.content, text);
  },
  async chat_stream_aborted() {
    const stream = await client.chat.completions.create({ messages, model, max_tokens: 1000, stream: true });
    for await (const _ of stream) {
      stream.controller.abort();
      break;
    }
    equal((await client.chat.completions.create({ messages, ...short })).usage.completion_tokens, 6);
  },
  async completion_and_streamed() {
    const whole = (await client.completions.create({ prompt: "Once upon", ...short })).choices[0].text;
    let text = "";
    for await (const chunk of await client.completions.create({ prompt: "Once upon", stream: true, ...short }))
      text += chunk.choices[0].text;
    equal(text, whole);
  },
  async with_response() {
    const { response, request_id } = await client.chat.completions.create({ messages, ...short }).withResponse();
    equal(response.status, 200);
    equal(request_id, response.headers.get("x-request-id"));
  },
  async sixteen_at_once() {
    const calls = Array.from({ length: 16 }, (_, i) => client.completions.create({ prompt: `number ${i}`, ...short }));
    equal((await Promise.all(calls)).every((answer) => answer.usage.completion_tokens === 6), true);
  },
  async wrong_value_refused_by_name() {
    try {
      await client.chat.completions.create({ messages, model, temperature: -1 });
    } catch (error) {
      equal([error.constructor.name, error.status, error.param], ["BadRequestError", 400, "temperature"]);
      return;
    }
    throw new Error("not refused");
  },
});
