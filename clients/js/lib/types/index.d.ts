/** Live data, shadows and commands of an IoTSphere gateway, in browsers and in Node.js. */
export { type Client, connect } from "./client.js";
export { command, type Command, type CommandFacts, type CommandOptions } from "./command.js";
export { ConflictError, IotSphereError } from "./errors.js";
export { type Changed, shadow, type Shadow, type ShadowDocument } from "./shadow.js";
export type { Subscription } from "./subscription.js";
export type * from "./types.js";
export { LastValues } from "./values.js";
